"""The precision that a request asks for: an exact answer, a fast one, or whichever the service can afford. Pure."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

PIN_KEY = (
    "precision"  # in SamplingParams.extra_args or PoolingParams.extra_kwargs; over HTTP in the body or its vllm_xargs
)
PIN_HEADER = "x-nestedfp-precision"


class AskedPrecision(enum.StrEnum):
    """What a request asks for; ``fp16`` is an alias of ``exact``."""

    EXACT = "exact"  # a promise: every step of it runs FP16, and it reads exact blocks alone ("pinned")
    FAST = "fast"  # FP8 will do: exact steps are left to others
    AUTO = "auto"  # exact if the service can afford it

    @classmethod
    def _missing_(cls, value: object) -> "AskedPrecision | None":
        return cls.EXACT if value == "fp16" else None


def asked_of(params: Any) -> AskedPrecision | None:
    """Return what ``SamplingParams`` or ``PoolingParams`` ask for; None: nothing is said.

    Raises:
        ValueError: see ``parse_asked``.
    """
    return parse_asked(getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None))


def parse_asked(given: Mapping[str, Any] | None) -> AskedPrecision | None:
    """Return what is asked for under ``PIN_KEY``; None: nothing is said.

    Raises:
        ValueError: for anything but the values of ``AskedPrecision`` and its alias.
    """
    value = (given or {}).get(PIN_KEY)
    try:
        return None if value is None else AskedPrecision(value)
    except ValueError:
        raise ValueError(
            f"precision must be 'exact' (every token of the answer in FP16), 'fast' (FP8 will do) or 'auto' (exact if the "
            f"service can afford it), got {value!r:.40}; set it in the body or in the header {PIN_HEADER}"
        ) from None


class AskedError(ValueError):
    """An unknown precision, or two that contradict each other.

    Attributes:
        where: the field or header.
    """

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def stated(given: Iterable[tuple[Any, str]]) -> AskedPrecision | None:
    """Return what a request asks for, given what its places say; None: nothing. Of ``auto`` and another, the other.

    Args:
        given: value (None: nothing is said there) and name of each place.

    Raises:
        AskedError: for an unknown precision, or for two that contradict each other.
    """
    found: dict[AskedPrecision, str] = {}
    for value, where in given:
        try:
            if (asked := parse_asked({PIN_KEY: value})) is not None:
                found.setdefault(asked, where)
        except ValueError as error:
            raise AskedError(str(error), where) from None
    if AskedPrecision.EXACT in found and AskedPrecision.FAST in found:
        exact, fast = found[AskedPrecision.EXACT], found[AskedPrecision.FAST]
        raise AskedError(f"{exact} asks for an exact answer and {fast} for a fast one: leave one of the two out", fast)
    return next(
        (asked for asked in (AskedPrecision.EXACT, AskedPrecision.FAST, AskedPrecision.AUTO) if asked in found), None
    )

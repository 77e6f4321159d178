"""The pin: a request's demand that all of its tokens are computed in exact FP16. Pure."""

from collections.abc import Mapping
from typing import Any

from nestedfp.modes import Mode

PIN_KEY = "precision"  # in SamplingParams.extra_args or PoolingParams.extra_kwargs; over HTTP in vllm_xargs
PIN_HEADER = "x-nestedfp-precision"


def is_pinned(params: Any) -> bool:
    """Return True if ``SamplingParams`` or ``PoolingParams`` pin their request to FP16; None pins nothing.

    Raises:
        ValueError: see ``parse_pin``.
    """
    return parse_pin(getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None))


def parse_pin(extra_args: Mapping[str, Any] | None) -> bool:
    """Return True if the request is pinned to FP16.

    Raises:
        ValueError: for anything but ``"fp16"`` and ``"auto"``.
    """
    pin = (extra_args or {}).get(PIN_KEY)
    if pin not in (None, "auto", Mode.FP16.value):
        raise ValueError(
            f"precision must be 'fp16' (every step of this request runs exact FP16) or 'auto' (the service decides), "
            f"got {pin!r}; set it in vllm_xargs.precision or in the header {PIN_HEADER}"
        )
    return pin == Mode.FP16.value

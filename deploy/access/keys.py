"""Bearer keys: who may ask for what, and how much of it. Pure but for reading the file.

The file is YAML (or JSON), a ``KeysFile``; docs/security.md shows one.

Without a file, everything is open but for the admin routes, which have a key of their own.

Each replica enforces its part of a limit, one of as many parts as there are replicas; a request that is refused by one is
offered to the others before the client hears of it, so that the whole limit can be used.
"""

import enum
import hashlib
import hmac
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from controller.watched_file import WatchedFile
from deploy.access.priority import Priority
from deploy.config import ConfigError
from deploy.front.replies import Refused
from deploy.haproxy.haproxy_config import ELSEWHERE_STATUS
from nestedfp.admin_key import bearer
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision
from workload.frozen import FrozenModel
from workload.strict_yaml import DuplicateKeyError, parse_yaml

log = logging.getLogger(__name__)

KEYS_FILE_ENV = "NESTEDFP_KEYS_FILE"  # names the file where the configuration names none
MOST_KEYS = 256  # each request is compared with all of them
WINDOW_S = 60.0
LOOK_EVERY_S = 2.0  # for a change of the file


class Role(enum.StrEnum):
    """What a key's holder may do; each role includes the ones before it."""

    USER = "user"
    PIN = "pin"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether a holder of this role may do what ``other`` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class KeyEntry(FrozenModel):
    """One key of the file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    sha256: str
    role: Role = Role.USER
    requests_per_minute: Annotated[int, Field(gt=0)] | None = None
    tokens_per_minute: Annotated[int, Field(gt=0)] | None = None
    pinned_token_share: Annotated[float, Field(gt=0, le=1)] | None = None
    priority: Priority | None = None
    precision: AskedPrecision = AskedPrecision.AUTO
    precisions: Annotated[tuple[AskedPrecision, ...], Field(min_length=1)] | None = None

    @property
    def allowed(self) -> frozenset[AskedPrecision]:
        """What the key's requests may ask for."""
        if self.precisions is not None:
            return frozenset(self.precisions)
        return frozenset(AskedPrecision) - (frozenset() if self.role.includes(Role.PIN) else {AskedPrecision.EXACT})

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        return bytes.fromhex(self.sha256)

    @field_validator("sha256")
    @classmethod
    def _is_a_digest(cls, value: str) -> str:
        # The value is not repeated in the message: somebody may have written the key itself here.
        digits = value.lower()
        if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
            raise ValueError("expected 64 hexadecimal digits, the SHA-256 of the key: printf %s KEY | sha256sum")
        if digits == hashlib.sha256(b"").hexdigest():
            raise ValueError("this is the SHA-256 of nothing: an empty key would let everybody in")
        return digits

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.pinned_token_share is not None and self.tokens_per_minute is None:
            raise ValueError("pinned_token_share needs tokens_per_minute, which it is a share of")
        if self.pinned_token_share is not None and AskedPrecision.EXACT not in self.allowed:
            raise ValueError(
                "pinned_token_share needs the role pin or admin, or exact among precisions: a user cannot pin"
            )
        if self.precision not in self.allowed:
            raise ValueError(
                f"precision: requests that say nothing would ask for {self.precision}, and the key may ask for "
                f"{named(self.allowed)}: say which of them"
            )
        return self


class KeysFile(FrozenModel):
    """The file."""

    keys: Annotated[tuple[KeyEntry, ...], Field(min_length=1, max_length=MOST_KEYS)]

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        for field in ("name", "sha256"):
            values = [getattr(entry, field) for entry in self.keys]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                named = ", ".join(entry.name for entry in self.keys if getattr(entry, field) in twice)
                raise ValueError(f"{field}: two keys have the same ({named})")
        return self


def load(path: Path) -> KeysFile:
    """Read and check the file.

    Raises:
        ConfigError: naming the file and every fault; nothing of a key is in the message.
    """
    try:
        data = parse_yaml(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: the file of keys cannot be read: {error.strerror}") from None
    except DuplicateKeyError as error:  # without the name: somebody may have written a key there
        raise ConfigError(
            f"{path}:{error.line}: the same name stands in line {error.first_line} already, and one of them would be ignored: "
            "remove one"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigError(f"{path}: the file of keys is not valid YAML") from None
    try:
        return KeysFile.model_validate(data)
    except ValidationError as error:
        # Without the values: one of them may be a key that somebody wrote into the wrong place.
        faults = [
            f"{'.'.join(map(str, f['loc'])) or 'the whole'}: {f['msg']}" for f in error.errors(include_input=False)
        ]
        raise ConfigError("\n".join([f"{path}:", *faults])) from None


class Limited(Refused):
    """A quota is used up; says when there will be some of it again."""

    def __init__(self, message: str, retry_after_s: float, status: int = 429) -> None:
        super().__init__(status, message, retry_after_s=max(1, math.ceil(retry_after_s)))

    def elsewhere(self) -> "Limited":
        """The same, offered to another replica, where some of the quota may be left."""
        return Limited(str(self), self.retry_after_s, ELSEWHERE_STATUS)


class Unauthorized(Refused):
    """No key, or a wrong one."""

    def __init__(self) -> None:
        message = "missing or wrong key: send the header 'Authorization: Bearer <key>'"
        super().__init__(401, message, more=((b"www-authenticate", b"Bearer"),))


class Bucket:
    """An allowance that refills evenly; it may be overdrawn by what turns out to have been used."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._used = 0.0
        self._at_s = clock()

    def _settle(self, parts: int) -> float:
        """Return this replica's allowance of a minute, after what has been used was written off for the time since."""
        allowance = self._per_minute / max(1, parts)
        now_s = self._clock()
        self._used = max(0.0, self._used - allowance * (now_s - self._at_s) / WINDOW_S)
        self._at_s = now_s
        return allowance

    def wait_s(self, parts: int) -> float:
        """Return how long to wait until one is there; 0: it is there now."""
        allowance = self._settle(parts)
        # Whatever the share of a replica, a single request must be able to fit.
        excess = self._used + min(1.0, allowance) - allowance
        return 0.0 if excess <= 0 else excess / allowance * WINDOW_S

    def use(self, parts: int, amount: float) -> None:
        """Take an amount."""
        self._settle(parts)
        self._used += amount


def named(allowed: frozenset[AskedPrecision]) -> str:
    """Return the names of precisions, in their order."""
    return ", ".join(each for each in AskedPrecision if each in allowed)


class Holder:
    """A key's name, role, class and quotas on this replica; ``parts`` returns how many replicas share the limits."""

    def __init__(self, entry: KeyEntry, parts: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.role, self.priority = entry.name, entry.role, entry.priority
        self._usual, self._allowed = entry.precision, entry.allowed
        self._parts = parts
        tokens, share = entry.tokens_per_minute, entry.pinned_token_share
        self._requests = None if entry.requests_per_minute is None else Bucket(entry.requests_per_minute, clock)
        self._tokens = None if tokens is None else Bucket(tokens, clock)
        self._pinned = None if tokens is None or share is None else Bucket(tokens * share, clock)

    def asked(self, stated: AskedPrecision | None) -> AskedPrecision:
        """Return what a request that states this, or nothing, asks for.

        Raises:
            Refused: 403 for what the key may not have.
        """
        asked = stated or self._usual
        if asked not in self._allowed:
            raise Refused(
                403, f"the key {self.name!r} may not ask for precision {asked}: it may ask for {named(self._allowed)}"
            )
        return asked

    def enter(self, pinned: bool) -> None:
        """A request wants in.

        Raises:
            Limited: a quota is used up, and nothing is taken.
        """
        parts = self._parts()
        buckets = [
            (self._requests, "requests"),
            (self._tokens, "tokens"),
            (self._pinned if pinned else None, "tokens of pinned requests"),
        ]
        for bucket, what in buckets:
            if bucket is not None and (wait_s := bucket.wait_s(parts)) > 0:
                raise Limited(f"the key {self.name!r} has used up its {what} of this minute", wait_s)
        if self._requests is not None:
            self._requests.use(parts, 1)

    def leave(self, tokens: int, pinned: bool) -> None:
        """A request has ended that computed or read so many tokens."""
        for bucket in (self._tokens, self._pinned if pinned else None):
            if bucket is not None:
                bucket.use(self._parts(), tokens)


class Keys:
    """All keys; finds the holder of a request's. Without a file everybody is let in; ``parts`` as in ``Holder``.

    Takes the file up again when it changes, so that a key can be withdrawn. One that is damaged later changes nothing, and the
    log says so; at the start it is a ``ConfigError``.
    """

    def __init__(
        self,
        path: Path | None = None,
        parts: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._parts, self._clock = path, parts, clock
        self._holders: dict[KeyEntry, Holder] = {}
        self._file = WatchedFile(path, LOOK_EVERY_S, clock())
        if path is not None:
            self._take(load(path))

    @property
    def configured(self) -> bool:
        """Whether anybody needs a key."""
        return self._path is not None

    def holder(self, authorization: str | None, role: Role = Role.USER) -> Holder | None:
        """Return whose key a header ``Authorization`` has; None where no keys are configured.

        Raises:
            Refused: 401 for no key or a wrong one, 403 for one whose role does not include ``role``.
        """
        if self._path is None:
            return None
        self._reload_if_changed()
        digest = hashlib.sha256(bearer(authorization).encode()).digest()
        found = None
        for entry, holder in self._holders.items():  # all of them, whichever matches: the time says nothing
            if hmac.compare_digest(entry.digest, digest):
                found = holder
        if found is None:
            raise Unauthorized
        if not found.role.includes(role):
            message = f"the key {found.name!r} has the role {found.role}; this needs the role {role}"
            raise Refused(403, message)
        return found

    def of(self, headers: Mapping[bytes, bytes], role: Role = Role.USER) -> Holder | None:
        """As ``holder``, from the headers of an ASGI scope."""
        given = headers.get(b"authorization")
        return self.holder(None if given is None else given.decode("latin-1"), role)

    def _take(self, file: KeysFile) -> None:
        # A key that stays as it was keeps what it has used.
        before = self._holders
        self._holders = {entry: before.get(entry) or Holder(entry, self._parts, self._clock) for entry in file.keys}

    def _reload_if_changed(self) -> None:
        if self._path is None or not self._file.changed(self._clock()):
            return
        try:
            self._take(load(self._path))
            log.info("keys taken up again from %s: %d", self._path, len(self._holders))
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)


def path_of(configured: str | None) -> Path | None:
    """Return where the keys are: where the configuration says, or the environment; None: nowhere, no keys are needed."""
    found = configured or os.environ.get(KEYS_FILE_ENV)
    return None if not found else Path(found).expanduser()

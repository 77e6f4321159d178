"""What one load test does: a frozen model built from the command line, checked before anything starts. Pure."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from loadtest.service.target import target_url
from workload.frozen import FrozenModel
from workload.records import Policy

Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(ge=1)]
POLICIES: tuple[Policy, ...] = ("fp16", "fp8", "adaptive")
PLAIN = re.compile(r"plain(-[A-Za-z0-9._-]{1,40})?")


class LoadtestConfig(FrozenModel):
    """One load test. The command line's help explains the fields."""

    # the service: one of the two
    service_config: Path | None = None
    allow_host: str | None = None  # other than this machine; the URL names it as well
    url: str | None = None
    admin_key_file: Path | None = None  # instead of the environment variable
    # the load
    trace: Path | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    start_s: Annotated[float, Field(ge=0)] | None = None  # None: the window with the most pronounced burst
    duration_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    rate_rps: Positive | None = None  # None: load_fraction of the measured FP16 capacity
    load_fraction: Annotated[float, Field(gt=0, le=3)] = 0.85
    context_tokens: Annotated[int, Field(ge=2)] | None = None  # None: what the service says, or 2048
    length_scale: Positive | None = None
    max_prompt_tokens: PositiveInt | None = None
    max_output_tokens: PositiveInt | None = None
    exact_share: Annotated[float, Field(ge=0, le=1)] = 0.0  # of the requests that ask for an exact answer
    session_share: Annotated[float, Field(ge=0, le=1)] = 1.0  # of the trace's conversations that tell their name
    # the runs
    # Or one that begins with plain: no directives, for a server without controller.
    policies: tuple[Policy, ...] = POLICIES
    slo_ttft_ms: Positive | None = None  # None: the service's own
    slo_tpot_ms: Positive | None = None
    probe_s: Annotated[float, Field(gt=0, le=60)] = 10.0
    probe_users: Annotated[int, Field(ge=1, le=4096)] = 256
    cooldown_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    settle_limit_s: Positive = 120.0  # for a directive to be in force and the queues to be empty
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 60.0
    request_timeout_s: Positive = 120.0
    out: Path = Path("runs")

    @field_validator("url")
    @classmethod
    def _allowed(cls, url: str | None, info: ValidationInfo) -> str | None:
        return None if url is None else target_url(url, info.data.get("allow_host"))

    @field_validator("policies", mode="before")
    @classmethod
    def _known_policies(cls, policies: tuple[str, ...]) -> tuple[str, ...]:
        given = ",".join(policies) or "none"
        known = all(policy in POLICIES or PLAIN.fullmatch(policy) for policy in policies)
        if not policies or not known or len(set(policies)) != len(policies):
            raise ValueError(f"expected different ones of {','.join(POLICIES)}, or plain, or plain-NAME, got {given}")
        if len(policies) > 1 and not set(policies) <= set(POLICIES):
            raise ValueError(f"a plain run takes no directives and stands alone: run once per server, got {given}")
        return policies

    @model_validator(mode="after")
    def _one_service(self) -> Self:
        if (self.service_config is None) == (self.url is None):
            raise ValueError("give either --config FILE (starts the service) or --url URL (a running one)")
        if self.url is None and (self.allow_host is not None or self.admin_key_file is not None):
            raise ValueError("--allow-host and --admin-key-file are for a running service: they need --url")
        return self

    @property
    def directed(self) -> bool:
        """Whether the precision is directed; a server without a controller takes no directives."""
        return set(self.policies) <= set(POLICIES)

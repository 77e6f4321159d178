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
    """One load test; a field's description is the help of its option, and says in brackets what None stands for."""

    # the service: one of the two
    service_config: Path | None = Field(None, description="start the service with this")
    allow_host: str | None = Field(
        None, description="with --url: this host of a private network may be the target as well"
    )
    url: str | None = Field(None, description="use a running service on this machine, e.g. http://127.0.0.1:8000")
    admin_key_file: Path | None = Field(
        None, description="with --url: file with its key (the variable NESTEDFP_ADMIN_KEY)"
    )
    # the load
    trace: Path | None = Field(
        None, description="Azure trace, CSV, or Mooncake trace, .jsonl (a synthetic one of Azure's shape)"
    )
    seed: int = Field(0, ge=0)
    start_s: float | None = Field(None, ge=0, description="of the window (around the worst burst)")
    duration_s: float = Field(120.0, gt=0, le=3600)
    rate_rps: Positive | None = Field(None, description="mean requests/s (--load-fraction of what the service carries)")
    load_fraction: float = Field(0.85, gt=0, le=3, description="mean rate over FP16 capacity")
    context_tokens: int | None = Field(None, ge=2, description="prompt and output together (the service's, or 2048)")
    length_scale: Positive | None = Field(None, description="of all lengths (99 % fit the context)")
    max_prompt_tokens: PositiveInt | None = None
    max_output_tokens: PositiveInt | None = None
    exact_share: float = Field(0.0, ge=0, le=1, description="of the requests, which ask for an exact answer")
    session_share: float = Field(
        1.0, ge=0, le=1, description="of the conversations of a .jsonl trace, which tell their name"
    )
    # the runs
    policies: tuple[Policy, ...] = Field(
        POLICIES,
        description="some of fp16,fp8,adaptive; plain, or plain-NAME, alone: a server without controller, run once as it is",
    )
    slo_ttft_ms: Positive | None = Field(None, description="(the service's)")
    slo_tpot_ms: Positive | None = Field(None, description="(the service's)")
    probe_s: float = Field(10.0, gt=0, le=60, description="the calibration")
    probe_users: int = Field(256, ge=1, le=4096, description="at once in it")
    cooldown_s: float = Field(10.0, ge=0, le=600)
    settle_limit_s: Positive = Field(120.0, description="for a directive and empty queues")
    drain_s: float = Field(60.0, ge=0, le=3600, description="after the last arrival")
    request_timeout_s: Positive = 120.0
    out: Path = Field(Path("runs"), description="parent of the report's folder")

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

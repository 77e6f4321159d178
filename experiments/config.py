"""What an experiment is: a frozen model read from YAML, checked before anything starts. Pure but for ``load``."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from benchmarks.engine.engine_shapes import NAMES
from benchmarks.http.http_systems import EngineConfig
from controller.config import ControllerConfig, explain
from workload.frozen import FrozenModel
from workload.slo import Slo
from workload.strict_yaml import YamlFileError, read_yaml_file

Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,30}$")]


class ExperimentError(ValueError):
    """A configuration, a server or a run that an experiment cannot go on with; the message is for the user."""


class TraceWindow(FrozenModel):
    """A part of a trace, and what is made of its lengths: what has to be the same for two load tests to be compared."""

    start_s: Annotated[float, Field(ge=0)]
    duration_s: Positive
    length_scale: Positive | None = None
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None


class LoadConfig(TraceWindow):
    """Arrivals: a window of a trace at several mean rates, each with every seed."""

    rates_rps: tuple[Positive, ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    cooldown_s: Annotated[float, Field(ge=0)] = 2.0
    drain_s: Annotated[float, Field(ge=0)] = 15.0
    settle_limit_s: Positive = 30.0

    @property
    def window(self) -> TraceWindow:
        """The part of the trace, without rates and seeds."""
        return TraceWindow(**{name: getattr(self, name) for name in TraceWindow.model_fields})


class Kill(FrozenModel):
    """A process that is killed while requests arrive."""

    process: Literal["engine", "controller"]
    at_s: Positive  # after the first arrival is due


class Run(FrozenModel):
    """One way to serve the load."""

    name: Name
    system: Literal["nestedfp", "vllm_fp16", "vllm_fp8", "vllm_nestedfp"] = "nestedfp"
    directive: Literal["fp16", "fp8"] | None = None  # of nestedfp: held by an override
    policy: dict[str, Any] | None = None  # of nestedfp: the controller's; see docs/policies.md
    controller: dict[str, Any] = Field(default_factory=dict)  # of nestedfp: further keys of the controller's section
    kill: Kill | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None  # of a peer: its own budget of a step
    exact_share: Annotated[float, Field(ge=0, le=1)] = 0.0  # of nestedfp: requests that ask for an exact answer
    session_share: Annotated[float, Field(ge=0, le=1)] = 1.0  # of a .jsonl trace's conversations that tell their name

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = (self.directive is not None) + (self.policy is not None)
        if self.system == "nestedfp" and ways != 1:
            raise ValueError(f"run {self.name}: give either a directive or a policy")
        if self.system != "nestedfp" and (ways or self.controller or self.kill or self.exact_share):
            raise ValueError(
                f"run {self.name}: {self.system} takes no directive, policy, controller keys, kill or exact_share"
            )
        if self.system == "nestedfp" and self.max_num_batched_tokens is not None:
            raise ValueError(f"run {self.name}: max_num_batched_tokens is for peers; set it in engine for all runs")
        return self


class Experiment(FrozenModel):
    """One experiment."""

    name: Name
    shape: str | None = None  # of benchmarks.engine.engine_shapes, with random weights, on GPUs
    model: Path | None = None  # or a checkpoint, on whatever this machine has
    replicas: Annotated[int, Field(ge=1)] = 1
    # With a prefix cache each load test has engines of its own: another of the same seed would find its prompts in the cache.
    engine: EngineConfig = EngineConfig()
    slo: Slo = Slo()
    load: LoadConfig
    runs: tuple[Run, ...] = Field(min_length=1)

    @field_validator("runs")
    @classmethod
    def _different(cls, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        names = [run.name for run in runs]
        if len(set(names)) < len(names):
            raise ValueError(f"runs: expected different names, got {names}")
        return runs

    @model_validator(mode="after")
    def _known_policies(self) -> Self:
        for run in self.runs:
            if run.system == "nestedfp":
                try:
                    ControllerConfig.model_validate(controller_section(self.slo, run))
                except ValidationError as error:
                    raise ValueError(f"run {run.name}: {explain(error)}") from error
        return self

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.shape is None) == (self.model is None):
            raise ValueError("give either shape or model")
        if self.shape is not None and self.shape not in NAMES:
            raise ValueError(f"shape: expected one of {', '.join(NAMES)}, got {self.shape}")
        return self


def controller_section(slo: Slo, run: Run) -> dict[str, Any]:
    """Return the controller's section of the service's configuration during a run."""
    policy = run.policy or {"name": f"static_{run.directive}"}
    return {"slo": slo.model_dump(), **run.controller, "policy": policy}


def load(path: Path) -> Experiment:
    """Read an experiment.

    Raises:
        ExperimentError: no such file, no YAML, an unknown key or a value out of range; names the key.
    """
    try:
        return Experiment.model_validate(read_yaml_file(path))
    except YamlFileError as error:
        raise ExperimentError(str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ExperimentError(f"{path}: {where + ': ' if where else ''}{first['msg']}") from error

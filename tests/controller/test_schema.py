"""The records that cross processes: strict, immutable, and the same after JSON."""

import math
from typing import Any

import pytest
from controller_builders import CALM, make_snapshot
from pydantic import BaseModel, ValidationError

from controller.messages import Directive, DirectiveAck, PathStats, ReplicaSnapshot
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule

PATH = PathStats(in_path=3, wait_p90_ms=1.5, loop_lag_ms=4, open_streams=40, paused_streams=1)
RULE = StepRule(64, 0.5)
RECORDS: list[BaseModel] = [
    make_snapshot(path=PATH, stats_age_s=0.1, progress_age_s=0.0),
    Directive(epoch=3, mode=DirectiveMode.AUTO, lease_s=2, reason="x", rule=RULE, slo_ttft_ms=200, replicas=2),
    DirectiveAck(replica_id="r", epoch=3, directive=DirectiveMode.FP8, accepted=True),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_records_survive_json_and_refuse_unknown_keys(record: BaseModel) -> None:
    assert type(record).model_validate_json(record.model_dump_json()) == record
    assert type(record).model_validate(record.model_dump(mode="json")) == record
    with pytest.raises(ValidationError, match="surplus"):
        type(record).model_validate({**record.model_dump(), "surplus": 1})


@pytest.mark.parametrize(
    "fault",
    [
        {"waiting": -1},
        {"kv_usage": 1.01},
        {"oldest_wait_s": math.nan},
        {"oldest_wait_s": math.inf},
        {"step_ms_fp8": -0.1},
        {"mode": "auto"},
        {"replica_id": ""},
        {"tokens_fp8": 1.5},
        {"admission_scale": 0.0},
        {"admission_scale": 1.1},
        {"refused": -1},
        {"stats_age_s": -0.1},
        {"progress_age_s": math.inf},
        {"path": {"loop_lag_ms": math.nan}},
    ],
    ids=str,
)
def test_a_snapshot_with_an_impossible_value_is_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fault))):
        ReplicaSnapshot.model_validate({**CALM, **fault})

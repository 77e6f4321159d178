"""The decision log: JSON lines, the latest in memory, older files rotated away."""

import json
from pathlib import Path

import pytest

from controller.audit import SCHEMA_VERSION, BroadcastRecord, DecisionRecord
from controller.live import decision_log
from nestedfp.modes import DirectiveMode
from nestedfp.steps.step_rule import StepRule


def make_decision(decision_id: int) -> DecisionRecord:
    return DecisionRecord(
        decision_id=decision_id,
        now_s=1.0,
        from_mode=DirectiveMode.FP16,
        to_mode=DirectiveMode.FP8,
        rule=StepRule(),
        epoch=2,
        policy="threshold",
        reason="wait_ratio_over_enter",
        inputs={"wait_s": 0.5},
    )


def test_old_decisions_are_rotated_away_and_no_line_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = decision_log.RotatingLines
    monkeypatch.setattr(decision_log, "RotatingLines", lambda path: lines(path, max_bytes=4000, files_kept=2))
    log = decision_log.DecisionLog(str(tmp_path / "new" / "decisions.jsonl"), kept=3)
    for decision_id in range(1, 101):
        log.write(make_decision(decision_id))
    log.write(BroadcastRecord(epoch=2, mode=DirectiveMode.FP8, replicas=2, last_ack_ms=3.0))
    log.close()
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    assert all(file.stat().st_size <= 4000 for file in files)
    records = [json.loads(line) for file in reversed(files) for line in file.read_text().splitlines()]
    assert {record["schema_version"] for record in records} == {SCHEMA_VERSION}
    ids = [record["decision_id"] for record in records if record["kind"] == "decision"]
    assert ids == list(range(ids[0], 101))
    assert 1 < ids[0] < 100
    assert records[-1]["kind"] == "broadcast"


def test_memory_keeps_the_latest_decisions_for_those_who_ask_since() -> None:
    log = decision_log.DecisionLog(None, kept=3)
    for decision_id in range(1, 6):
        log.write(make_decision(decision_id))
    assert [record["decision_id"] for record in log.since(0)] == [3, 4, 5]
    assert [record["decision_id"] for record in log.since(4)] == [5]
    assert log.since(5) == []

"""A live run is recorded and played again: the same inputs give the same effects, and a change is found."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from test_actor import FAST, Replicas, drive

from controller.live.actor import ControllerActor
from controller.live.replay import Difference, RecordingError, files_of, main, replay


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with load, overrides, a refused one, a reload and acknowledgements, in real time."""
    folder = tmp_path_factory.mktemp("recording")
    config_file = folder / "service.yaml"
    config_file.write_text(json.dumps({"controller": FAST}))

    async def test(actor: ControllerActor, replicas: Replicas) -> None:
        await replicas.report(actor)
        for round_ in range(40):
            await replicas.report(actor, oldest_wait_s=3.0 if round_ % 20 < 5 else 0.0, arrivals=10 + round_)
            await asyncio.sleep(0.01)
        await actor.set_override("fp8", 0.02, "r1")
        with pytest.raises(ValueError, match="expected one of the replicas"):
            await actor.set_override("fp8", None, "nobody")
        guards = {"dwell_fp8_s": 0.05, "dwell_fp16_s": 0}
        config_file.write_text(json.dumps({"controller": {**FAST, "guards": guards}}))
        await actor.reload()
        await actor.set_override("fp8")
        await actor.set_override("fp16")  # sends a directive, whatever the policy had in force before
        await replicas.report(actor)

    drive(test, record_path=folder / "inputs.jsonl", config_path=config_file)
    return folder / "inputs.jsonl"


def test_a_recorded_run_gives_the_same_effects(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("equal: ")
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"config", "snapshot", "ack", "step", "override", "reload"}
    records = [line["effects"]["record"] for line in lines if line.get("effects", {}).get("record")]
    modes = {record["to_mode"] for record in records}
    assert modes == {"fp16", "fp8"}
    assert sum("error" in line.get("effects", {}) for line in lines) == 1


def changed(recording: Path, kind: str, change: Any) -> list[str]:
    """The recording with its last line of a kind changed."""
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    change(next(line for line in reversed(lines) if line["kind"] == kind))
    return [json.dumps(line) for line in lines]


def test_the_first_difference_is_named(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(line: dict[str, Any]) -> None:
        line["effects"]["record"]["to_mode"] = "auto"

    lines = changed(recording, "override", change)
    with pytest.raises(
        Difference, match=r"line \d+: effects of override: record: to_mode: recorded .*auto.*now .*fp16"
    ):
        replay(lines)
    (tmp_path / "changed.jsonl").write_text("\n".join(lines) + "\n")
    assert main([str(tmp_path / "changed.jsonl")]) == 1
    assert "different: line" in capsys.readouterr().out


def test_an_input_that_is_missing_is_noticed(recording: Path) -> None:
    lines = recording.read_text().splitlines()
    hot = next(i for i, line in enumerate(lines) if '"oldest_wait_s":3.0' in line)
    kept = [line for i, line in enumerate(lines) if i < hot or '"kind":"snapshot"' not in line]
    with pytest.raises(Difference):
        replay(kept)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1: not a line of a recording: expected a JSON object, got '{'; give the file"),
        (["# NestedFP"], "line 1: not a line of a recording: expected a JSON object, got '# NestedFP'"),
        (["[1]"], r"line 1: not a line of a recording: expected a JSON object, got '\[1\]'"),
        (['{"now_s": 0}'], "line 1: not a line of a recording: the key 'kind' is missing"),
        (['{"kind": "step", "now_s": 0, "effects": {}}'], "line 1: expected kind config first"),
        (['{"kind": "config", "schema_version": 1, "config": {}}'], r"expected schema_version \d, got 1"),
        (['{"kind": "config", "schema_version": 5, "config": {"polcy": 1}}'], "line 1: polcy: unknown key"),
        (
            ['{"kind": "config", "schema_version": 5, "config": {}}', '{"kind": "x", "now_s": 0}'],
            "line 2: unknown kind",
        ),
        (['{"kind": "config", "schema_version": 5, "config": {}}', '{"kind": "ack", "now_s": 0, "ack": {}}'], "line 2"),
    ],
)
def test_what_is_no_recording_is_refused_by_line(lines: list[str], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        replay(lines)


def test_rotated_parts_are_played_in_their_order(recording: Path, tmp_path: Path) -> None:
    lines = recording.read_text().splitlines(keepends=True)
    third = len(lines) // 3
    for name, part in (("r.2", lines[:third]), ("r.1", lines[third : 2 * third]), ("r", lines[2 * third :])):
        (tmp_path / name).write_text("".join(part))
    (tmp_path / "r.bak").write_text("not a part")
    assert [file.name for file in files_of(tmp_path / "r")] == ["r.2", "r.1", "r"]
    assert main([str(tmp_path / "r")]) == 0


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 2
    (tmp_path / "empty").write_text("")
    assert main([str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.count("error: ") == 2

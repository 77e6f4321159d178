"""``python -m simulator replay FILE``: plays a recording through a fresh control loop and demands the same effects.

Proves that what was recorded is all that the loop depends on, and shows what another version of the code would have
done. Exit status: 0 all effects are equal, 1 one differs (it is printed), 2 the recording cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controller.audit import SCHEMA_VERSION
from controller.config import ControllerConfig, explain
from controller.decide.loop import ControlLoop
from controller.live.recording import effects_as_json
from controller.messages import DirectiveAck, ReplicaSnapshot
from nestedfp.modes import DirectiveMode


class RecordingError(ValueError):
    """The recording cannot be played; the message names the line."""


class Difference(Exception):
    """The loop did something else than the recording says."""

    def __init__(self, number: int, where: str, recorded: Any, now: Any) -> None:
        super().__init__(f"line {number}: {where}: recorded {recorded!r}, now {now!r}")


def replay(lines: Iterable[str]) -> dict[str, int]:
    """Play the lines of a recording, which may hold several lives of a controller; return how many of each kind.

    Raises:
        Difference: at the first effect that is not as recorded.
        RecordingError: at a line that cannot be played.
    """
    loop: ControlLoop | None = None
    counts: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = _entry(line)
            kind = entry["kind"]
            if kind == "config":
                if entry["schema_version"] != SCHEMA_VERSION:
                    raise RecordingError(
                        f"expected schema_version {SCHEMA_VERSION}, got {entry['schema_version']}; "
                        "replay with the version that recorded it"
                    )
                loop = ControlLoop(ControllerConfig.model_validate(entry["config"]))
            elif loop is None:
                raise RecordingError("expected kind config first; the start of the recording has been rotated away")
            else:
                _play(number, loop, entry)
        except RecordingError as error:
            raise RecordingError(f"line {number}: {error}") from None
        except ValidationError as error:
            raise RecordingError(f"line {number}: {explain(error)}") from None
        except KeyError as error:
            raise RecordingError(f"line {number}: not a line of a recording: the key {error} is missing") from None
        except TypeError as error:
            raise RecordingError(f"line {number}: not a line of a recording: {error}") from None
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        entry = None
    if not isinstance(entry, dict):
        raise RecordingError(
            f"not a line of a recording: expected a JSON object, got {line.strip()[:60]!r}; give the file that "
            "input_record names in the service's configuration"
        )
    return entry


def _play(number: int, loop: ControlLoop, entry: dict[str, Any]) -> None:
    now_s, kind = entry["now_s"], entry["kind"]
    if kind == "snapshot":
        loop.on_snapshot(now_s, ReplicaSnapshot.model_validate(entry["snapshot"]))
        _compare(number, "epoch after the snapshot", entry["epoch"], loop.epoch)
    elif kind == "ack":
        loop.on_ack(now_s, DirectiveAck.model_validate(entry["ack"]))
    elif kind in ("step", "override", "reload"):
        config = ControllerConfig.model_validate(entry["config"]) if kind == "reload" else None
        try:
            if kind == "step":
                effects = loop.step(now_s)
            elif config is not None:
                effects = loop.reload(now_s, config)
            else:
                effects = loop.override(now_s, DirectiveMode(entry["mode"]), entry["ttl_s"], entry["replica_id"])
        except Exception as error:
            _compare(number, f"effects of {kind}", entry["effects"], {"error": repr(error)})
        else:
            _compare(number, f"effects of {kind}", entry["effects"], json.loads(json.dumps(effects_as_json(effects))))
    else:
        raise RecordingError(f"unknown kind {kind!r}")


def _compare(number: int, where: str, recorded: Any, now: Any) -> None:
    if recorded == now:
        return
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted(recorded.keys() | now.keys()):
            if recorded.get(key) != now.get(key):
                _compare(number, f"{where}: {key}", recorded.get(key), now.get(key))
    raise Difference(number, where, recorded, now)


def files_of(path: Path) -> list[Path]:
    """The files of a recording, the oldest first."""
    older = sorted(
        (file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit()),
        key=lambda file: -int(file.suffix[1:]),
    )
    return [*older, path]


def main(argv: list[str] | None = None) -> int:
    """Replay a recording; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulator replay", description=__doc__)
    parser.add_argument("file", type=Path, help="the recording; older parts (FILE.1, FILE.2 ...) are played before it")
    args = parser.parse_args(argv)

    def lines() -> Iterator[str]:
        for file in files_of(args.file):
            with file.open(encoding="utf-8") as opened:
                yield from opened

    try:
        counts = replay(lines())
    except Difference as difference:
        print(f"different: {difference}")
        return 1
    except (OSError, UnicodeDecodeError, RecordingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not counts:
        print(f"error: {args.file} is empty", file=sys.stderr)
        return 2
    print("equal: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    return 0

"""A trace whose rate goes in steps: what is written, read again; what cannot be made."""

import pytest

from experiments import steps
from workload.traces import Arrival, TraceError, read_trace

LENGTHS = [Arrival(float(number), 10 + number, 1 + number) for number in range(200)]


def test_rates_and_lengths_are_those_asked_for(tmp_path):
    source, out = tmp_path / "a.csv", tmp_path / "b.csv"
    lines = (f"2023-11-16 18:{number // 60:02}:{number % 60:02},{10 + number},{1 + number}" for number in range(200))
    source.write_text("\n".join([",".join(steps.COLUMNS), *lines]))
    words = [str(out), "--lengths", str(source), "--rates", "1,8,0.5", "--each-s", "10", "--from-s", "50"]
    assert steps.main(words) == 0
    first, *later = read_trace(out)
    assert (first.at_s, first.prompt_tokens) == (0.0, 10)
    assert [sum(begin <= each.at_s < begin + 10 for each in later) for begin in (0, 10, 20)] == [10, 80, 5]
    assert [(each.prompt_tokens, each.output_tokens) for each in later] == [(60 + n, 51 + n) for n in range(95)]
    assert steps.main([*words, "--seed", "1"]) == 0
    assert read_trace(out)[1:] != tuple(later)


def test_what_cannot_be_made_is_said(tmp_path, capsys):
    with pytest.raises(TraceError, match="100 requests from 100 s on, 120 are needed"):
        steps.stepped(LENGTHS, [12], 10, 100, 0)
    assert steps.main([str(tmp_path / "o"), "--lengths", str(tmp_path / "none"), "--rates", "1"]) == 2
    assert "cannot read the trace" in capsys.readouterr().err
    for rates in ("1,x", "-1", "nan"):
        assert steps.main([str(tmp_path / "o"), "--lengths", "t", f"--rates={rates}"]) == 2

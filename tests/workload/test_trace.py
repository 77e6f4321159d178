"""Traces: reading, the synthetic one, and shaping. Run: python -m pytest tests/workload/test_trace.py"""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.runner import planned
from loadtest.sender.prompts import prompt_token_ids
from workload.shape import (
    Lengths,
    cut_window,
    fit_lengths,
    most_bursty_start_s,
    peak_rate_rps,
    select_at_rate,
)
from workload.synthetic import synthetic_trace
from workload.traces import Arrival, TraceError, parse_trace, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
FIRST = "2023-11-16 18:15:46.6805900,374,44"


def parse(*lines: str) -> tuple[Arrival, ...]:
    return parse_trace([line + "\n" for line in lines], "t.csv")


def test_a_trace_starts_at_zero_and_keeps_lengths():
    arrivals = parse(HEADER, FIRST, "2023-11-16 18:15:50.9951690,396,109")
    assert arrivals[0] == Arrival(0.0, 374, 44)
    assert arrivals[1].at_s == pytest.approx(4.314579)
    assert (arrivals[1].prompt_tokens, arrivals[1].output_tokens) == (396, 109)


def test_columns_are_found_by_name_and_blank_lines_and_time_zones_are_fine():
    arrivals = parse(
        "GeneratedTokens,x,TIMESTAMP,ContextTokens",
        "1,?,2024-05-10 00:00:00.01+00:00,2",
        "",
        "3,?,2024-05-10 00:00:01.01+00:00,4",
    )
    assert arrivals == (Arrival(0.0, 2, 1), Arrival(1.0, 4, 3))


def test_slightly_swapped_times_are_sorted():
    arrivals = parse(HEADER, "2023-11-16 00:00:01.5,1,1", "2023-11-16 00:00:01.0,2,2", "2023-11-16 00:00:02,3,3")
    assert [(a.at_s, a.prompt_tokens) for a in arrivals] == [(0.0, 2), (0.5, 1), (1.0, 3)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "got an empty file"),
        ((HEADER,), "got only a header"),
        (("TIMESTAMP,ContextTokens", "2023-11-16 00:00:00,1"), "t.csv:1: .*missing: GeneratedTokens"),
        ((HEADER, FIRST, "2023-11-16 18:15:47,1"), "t.csv:3: expected 3 columns"),
        ((HEADER, "yesterday,1,1"), "t.csv:2: TIMESTAMP: .*got 'yesterday'"),
        ((HEADER, "2023-11-16 18:15:47,many,1"), "t.csv:2: ContextTokens: expected a whole number, got 'many'"),
        ((HEADER, "2023-11-16 18:15:47,1.5,1"), "t.csv:2: ContextTokens: expected a whole number"),
        ((HEADER, "2023-11-16 18:15:47,1,-3"), "t.csv:2: GeneratedTokens: expected 0 or more, got -3"),
        (
            (HEADER, FIRST, "2023-11-16 18:15:47,1,99999999999999999999999"),
            "t.csv:3: GeneratedTokens: expected at most 10000000 tokens, got 99999999999999999999999",
        ),
        ((HEADER, "2023-11-16 18:15:47,10000001,1"), "t.csv:2: ContextTokens: expected at most 10000000 tokens"),
        (
            (HEADER, f"2023-11-16 18:15:47,{'9' * 5000},1"),
            "t.csv:2: ContextTokens: expected a whole number, got '9{40}'$",
        ),
        ((HEADER, FIRST, "2023-11-16 18:15:40,1,1"), r"t.csv:3: expected times in order .*6.681 s before"),
        (
            (HEADER, *(f"2023-11-16 00:00:0{second}.5,1,1" for second in (9, 9, 8, 7))),
            r"t.csv:5: expected times in order .*got one 2.000 s before the latest above it",
        ),
        ((HEADER, FIRST, "2023-11-16 18:15:47+00:00,1,1"), "t.csv:3: .*with and without time zone"),
    ],
)
def test_a_broken_trace_is_refused_with_its_place(lines, message):
    with pytest.raises(TraceError, match=message):
        parse(*lines)


def test_a_file_is_read_and_a_missing_or_binary_one_is_refused(tmp_path):
    good = tmp_path / "good.csv"
    good.write_text(f"{HEADER}\n{FIRST}\n", encoding="utf-8-sig")
    assert read_trace(good) == (Arrival(0.0, 374, 44),)
    with pytest.raises(TraceError, match=r"none\.csv: cannot read .*--trace"):
        read_trace(tmp_path / "none.csv")
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"expected UTF-8 text, got byte 0xff"):
        read_trace(bad)


def test_the_synthetic_trace_has_the_stated_shape():
    trace = synthetic_trace(seed=1, duration_s=7200)
    assert trace == synthetic_trace(seed=1, duration_s=7200)
    assert trace != synthetic_trace(seed=2, duration_s=7200)
    assert len(trace) / 7200 == pytest.approx(5.53, rel=0.1)
    assert all(a.at_s <= b.at_s for a, b in pairwise(trace))
    prompts, outputs = np.array([(a.prompt_tokens, a.output_tokens) for a in trace]).T
    assert np.median(prompts) == pytest.approx(760, rel=0.05)
    assert prompts.mean() == pytest.approx(1225, rel=0.05)
    assert np.median(outputs) == pytest.approx(151, rel=0.05)
    assert outputs.mean() == pytest.approx(213, rel=0.05)
    counts = np.histogram([a.at_s for a in trace], np.arange(0, 7201, 20))[0]
    assert 0.05 < (counts > 1.3 * counts.mean()).mean() < 0.3  # bursts take a small part of the time


def even(count: int, gap_s: float = 1.0) -> tuple[Arrival, ...]:
    return tuple(Arrival(i * gap_s, 100, 10) for i in range(count))


def test_a_window_is_half_open_and_starts_at_zero():
    assert [a.at_s for a in cut_window(even(10), 3.0, 4.0)] == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(TraceError, match=r"from 50 s holds no request .*ends at 9 s.*--start"):
        cut_window(even(10), 50.0, 5.0)


def test_the_most_bursty_window_has_its_burst_in_the_middle():
    burst = tuple(Arrival(300.0 + i / 10, 1, 1) for i in range(200))
    trace = tuple(sorted(even(600) + burst, key=lambda a: a.at_s))
    start_s = most_bursty_start_s(trace, 120.0)
    assert start_s + 30 <= 300.0
    assert start_s + 90 >= 320.0
    assert peak_rate_rps(cut_window(trace, start_s, 120.0), 120.0) == pytest.approx(11.0, abs=0.1)
    assert most_bursty_start_s(even(5), 120.0) == 0.0


def test_lengths_are_scaled_to_the_context_and_capped():
    arrivals = (Arrival(0.0, 1000, 100), Arrival(1.0, 50_000, 9000), Arrival(2.0, 0, 0))
    fitted, scale = fit_lengths(arrivals, Lengths(context_tokens=512, scale=0.1))
    assert scale == 0.1
    assert [(a.prompt_tokens, a.output_tokens) for a in fitted] == [(100, 10), (256, 256), (1, 1)]
    fitted, scale = fit_lengths(
        arrivals[:1] * 50, Lengths(context_tokens=550, max_prompt_tokens=400, max_output_tokens=7)
    )
    assert scale == pytest.approx(0.5)
    assert (fitted[0].prompt_tokens, fitted[0].output_tokens) == (400, 7)
    _, scale = fit_lengths(arrivals[:1], Lengths(context_tokens=100_000))
    assert scale == 1.0  # never stretched


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 5_000)), min_size=1, max_size=30), st.integers(2, 5_000)
)
def test_no_request_ever_exceeds_the_context(sizes, context_tokens):
    arrivals = [Arrival(float(i), prompt, output) for i, (prompt, output) in enumerate(sizes)]
    for fitted in fit_lengths(arrivals, Lengths(context_tokens))[0]:
        assert fitted.prompt_tokens >= 1
        assert fitted.output_tokens >= 1
        assert fitted.prompt_tokens + fitted.output_tokens <= context_tokens


def test_thinning_keeps_times_and_gives_the_exact_rate():
    load = select_at_rate(even(200), 20.0, 100.0, rate_rps=0.3, seed=5)
    assert len(load.arrivals) == 30
    assert (load.start_s, load.span_s) == (20.0, 100.0)
    assert {a.at_s for a in load.arrivals} <= {float(i) for i in range(100)}
    assert load == select_at_rate(even(200), 20.0, 100.0, 0.3, seed=5)
    assert load != select_at_rate(even(200), 20.0, 100.0, 0.3, seed=6)


def test_a_higher_rate_squeezes_a_longer_window():
    load = select_at_rate(even(1000), 900.0, 100.0, rate_rps=4.0, seed=0)
    assert len(load.arrivals) == 400
    assert load.span_s > 400
    assert load.start_s < 600  # moved, as the trace would have ended
    assert max(a.at_s for a in load.arrivals) < 100.0


def test_impossible_rates_are_refused():
    with pytest.raises(TraceError, match="holds 10 requests, 1000 are needed"):
        select_at_rate(even(10), None, 10.0, rate_rps=100.0, seed=0)
    with pytest.raises(TraceError, match="less than one request"):
        select_at_rate(even(10), 0.0, 10.0, rate_rps=0.01, seed=0)


TURNS = [
    {"timestamp": 4000, "input_length": 1200, "output_length": 50, "hash_ids": [0, 7, 9]},
    {"timestamp": 9000, "input_length": 1700, "output_length": 60, "hash_ids": [0, 7, 11, 12]},
    {"timestamp": 5500, "input_length": 400, "output_length": 10, "hash_ids": [0]},
]


def test_a_mooncake_trace_says_which_prompts_begin_alike(tmp_path):
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps(each) for each in TURNS] + [""]))
    arrivals = read_trace(tmp_path / "t.jsonl")
    assert [(each.at_s, each.prompt_tokens, each.blocks) for each in arrivals] == [
        (0.0, 1200, (0, 7, 9)),
        (1.5, 400, (0,)),
        (5.0, 1700, (0, 7, 11, 12)),
    ]
    fitted, _ = fit_lengths(arrivals, Lengths(4096, 0.25, 400))
    assert [(each.prompt_tokens, each.block_tokens) for each in fitted] == [(300, 128), (100, 128), (400, 128)]
    first, alone, later = select_at_rate(fitted, 0.0, 6.0, 0.5, seed=0).arrivals
    requests = planned((first, alone, later), 0.0, seed=0, session_share=1.0)
    assert [each.session for each in requests] == ["conversation-7", None, "conversation-7"]
    assert {each.session for each in planned((first, alone, later), 0.0, seed=0)} == {None}

    def prompt(run, index):
        each = requests[index]
        return prompt_token_ids(0, run, index, each.prompt_tokens, blocks=each.blocks, block_tokens=each.block_tokens)

    assert [len(prompt(0, index)) for index in range(3)] == [300, 100, 400]
    assert prompt(0, 0)[:256] == prompt(0, 2)[:256], "two blocks of 128 tokens"
    assert prompt(0, 0)[256:262] != prompt(0, 2)[256:262]
    assert prompt(0, 1) != prompt(0, 0)[:100], "no whole block"
    assert prompt(0, 0)[:128] != prompt(1, 0)[:128], "another run finds nothing in the cache"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "t.jsonl:1: expected a JSON object with timestamp, input_length, output_length, hash_ids"),
        ("[1]", "expected a JSON object"),
        ("{}", "expected a JSON object"),
        (json.dumps({**TURNS[0], "hash_ids": "0"}), "hash_ids: expected a list of whole numbers"),
        (json.dumps({**TURNS[0], "hash_ids": [-1]}), "hash_ids: expected a list of whole numbers"),
        (json.dumps({**TURNS[0], "input_length": -5}), "input_length: expected 0 or more"),
        (json.dumps({**TURNS[0], "timestamp": "soon"}), "timestamp: expected a whole number, got 'soon'"),
        ("", "expected at least one request, got an empty file"),
    ],
)
def test_a_broken_mooncake_trace_is_refused_with_the_line(tmp_path, line, said):
    (tmp_path / "t.jsonl").write_text(line)
    with pytest.raises(TraceError, match=re.escape(said)):
        read_trace(tmp_path / "t.jsonl")


def test_prompts_have_exact_lengths_and_share_no_prefix():
    prompts = [prompt_token_ids(0, run, index, 40) for run in (0, 1) for index in range(300)]
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:6]) for prompt in prompts}) == len(prompts)
    assert all(10 <= token < 250 for prompt in prompts for token in prompt)
    assert prompts[0] == prompt_token_ids(0, 0, 0, 40)
    assert len(prompt_token_ids(0, 0, 0, 3)) == 3

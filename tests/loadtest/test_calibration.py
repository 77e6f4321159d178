"""What a service carries, from a closed loop."""

import pytest
from loadtest_builders import make_record

from loadtest.calibrate import carried
from loadtest.errors import LoadtestError


def test_what_is_carried_is_counted_in_tokens_after_the_start_up():
    # A token every 100 ms from 0 to 10 s, in requests of 10 tokens: one request a second.
    records = [
        make_record(i, intended_s=float(i), max_tokens=10, output_tokens=10, chunk_ms=[100.0 * k for k in range(10)])
        for i in range(9)
    ]
    cut = {"error": "cut at the end of the run", "output_tokens": 10}
    records.append(make_record(9, max_tokens=99, chunk_ms=[100.0 * k for k in range(10)], **cut))
    assert carried(records, 10.0, 10.0) == pytest.approx(1.0, rel=0.02)
    with pytest.raises(LoadtestError, match=r"no token came back in 1000 s .*--probe"):
        carried(records, 1000.0, 10.0)


def test_refusals_are_borne_and_other_failures_end_the_load_test():
    records = [make_record(i, max_tokens=10, output_tokens=10, chunk_ms=[4000.0] * 10) for i in range(9)]
    refused = make_record(0, status=429, error="HTTP 429: too many", chunk_ms=(), output_tokens=0)
    assert carried([*records, refused], 10.0, 10.0) > 0
    broken = make_record(0, status=500, error="HTTP 500: oh", chunk_ms=(), output_tokens=0)
    with pytest.raises(LoadtestError, match="the first with: HTTP 500: oh"):
        carried([*records, broken], 10.0, 10.0)

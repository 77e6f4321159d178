"""What is made of the windows with and without scrapes."""

from benchmarks.client.stream_client import ClientRun, Record
from benchmarks.front import scrape_cost
from benchmarks.http.http_stats import MeasuredSpan


def test_the_pairs_are_compared_one_by_one():
    tokens = {"not scraped": [1000.0, 2000.0], "scraped": [990.0, 1990.0]}
    rows = [{"what": what, "tokens_per_s": value} for what, values in tokens.items() for value in values]
    said = scrape_cost.summary(rows, 25.0)
    assert "1500 tokens/s without, 1490 with a scrape each 5 s: -0.75 % (standard error 0.25, 2 pairs)" in said
    assert "25.0 ms of processor time, 0.50 % of a core" in said


def test_a_windows_tokens_per_event_are_those_of_the_requests_that_ended_in_it():
    early, late = [Record(0, 0, 1, end_s, end_s, 200, events, 10, "ok") for end_s, events in ((4.0, 10), (14.0, 5))]
    load = ClientRun(records=[early, late], bins=[(3.0, 7), (13.0, 7)])
    seen = [scrape_cost.of_window(load, MeasuredSpan(begin_s, begin_s + 10.0)) for begin_s in (0.0, 10.0)]
    assert [each.records for each in seen] == [[early], [late]]
    assert [scrape_cost.figures(each, MeasuredSpan(0.0, 20.0)).tokens_per_event for each in seen] == [1.0, 2.0]

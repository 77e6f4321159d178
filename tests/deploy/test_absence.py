"""When a client should come again that found no replica: what is known of how long one takes to come."""

import pytest

from deploy.haproxy.absence import LONGEST_S, SHORTEST_S, UNKNOWN_S, Absence, look
from deploy.haproxy.haproxy_config import waiting


def looks(path, *seen):
    """What is known after looks at (replicas of the application at the root, time)."""
    for replicas, now_s in seen:
        known = look(path, {"": replicas}, now_s)[""]
    return known


@pytest.mark.parametrize("first", [0, None], ids=["deployed", "not yet deployed"])
def test_the_first_start_is_measured_and_expected_of_the_next(tmp_path, first):
    path = tmp_path / "absences"
    starts = looks(path, (first, 100.0), (0, 110.0))
    assert (starts.since_s, starts.took_s, starts.ends_s) == (100.0, None, None)
    assert looks(path, (1, 130.0)) == Absence(None, 30.0)
    assert looks(path, (2, 200.0), (1, 250.0)) == Absence(None, 30.0), "while there is one nobody waits"
    lost = looks(path, (0, 300.0), (0, 305.0))
    assert (lost.since_s, lost.ends_s) == (300.0, 330.0)
    assert looks(path, (1, 350.0)) == Absence(None, 50.0), "the newest counts"


def test_an_application_that_is_taken_away_says_nothing_of_how_long_a_start_takes(tmp_path):
    path = tmp_path / "absences"
    looks(path, (0, 100.0), (1, 130.0), (0, 200.0), (None, 201.0), (None, 9000.0))
    assert looks(path, (0, 9001.0)).ends_s == 9031.0
    assert looks(path, (1, 9021.0)) == Absence(None, 20.0)


@pytest.mark.parametrize("text", ["", "[]", '{"": 1}', '{"": {"x": 1}}'])
def test_a_file_that_cannot_be_read_is_made_anew(tmp_path, text):
    (tmp_path / "absences").write_text(text)
    assert looks(tmp_path / "absences", (0, 100.0)) == Absence(100.0)


def test_each_application_has_its_own(tmp_path):
    path = tmp_path / "absences"
    look(path, {"": 0, "/control": 0}, 100.0)
    look(path, {"": 0, "/control": 1}, 103.0)
    known = look(path, {"": 1, "/control": 1}, 140.0)
    assert (known[""].took_s, known["/control"].took_s) == (40.0, 3.0)


def test_what_nobody_knows_is_told_as_a_bounded_time():
    assert waiting(Absence(100.0)) == [f"http-request set-var(txn.wait_s) int({UNKNOWN_S})"]
    assert waiting(Absence(None, 30.0)) == [f"http-request set-var(txn.wait_s) int({SHORTEST_S})"]
    assert SHORTEST_S < UNKNOWN_S < LONGEST_S


def test_a_node_that_joins_a_running_service_has_measured_no_absence(tmp_path):
    path = tmp_path / "absences.json"
    look(path, {"": 2}, 100.0)
    assert look(path, {"": 2}, 101.0)[""] == Absence()


def test_an_application_that_was_taken_away_is_not_absent(tmp_path):
    path = tmp_path / "absences.json"
    for now_s, replicas in ((100.0, {"": 1, "/control": 1}), (101.0, {"": 1, "/control": 0}), (102.0, {"": 1})):
        look(path, replicas, now_s)
    assert look(path, {"": 1, "/control": 1}, 604800.0)["/control"] == Absence()


def test_a_disk_that_takes_nothing_ends_no_start(tmp_path):
    assert look(tmp_path / "none" / "absences.json", {"": 0}, 100.0)[""] == Absence(100.0)

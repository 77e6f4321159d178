"""A replica's door: who gets in at which scale."""

import pytest

from deploy.admission import Admission


@pytest.mark.parametrize(
    ("limit", "scale", "wanted"),
    [
        (None, 1.0, None),
        (None, 0.8, 25),  # of 4 * 8 sequences
        (None, 0.1, 3),
        (None, 0.001, 1),  # never shut altogether
        (10, 1.0, 10),
        (10, 0.5, 5),
    ],
)
def test_the_limit(limit, scale, wanted):
    door = Admission(limit, sequences=8)
    door.scale = scale
    assert door.limit == wanted


def test_those_inside_stay_when_the_limit_falls_and_those_that_come_are_counted():
    door = Admission(4, sequences=8)
    assert [door.enter() for _ in range(5)] == [True] * 4 + [False]
    door.scale = 0.5
    assert (door.inside, door.refused) == (4, 1)
    door.leave()
    door.leave()
    assert door.enter() is False
    assert "computes 2 sequences and takes 2" in door.message()
    door.leave()
    assert door.enter() is True
    assert (door.inside, door.refused) == (2, 2)


def test_without_a_limit_everybody_gets_in_and_is_counted_for_a_limit_to_come():
    door = Admission(None, sequences=1)
    assert all(door.enter() for _ in range(1000))
    door.scale = 0.9
    assert door.enter() is False


def test_a_request_counts_as_the_sequences_it_makes_the_engine_compute():
    door = Admission(8, sequences=8)
    assert door.enter(6) is True
    assert door.enter(3) is False
    assert door.enter(2) is True
    assert (door.inside, door.refused) == (8, 1)
    door.leave(6)
    assert door.inside == 2


def test_a_request_that_is_larger_than_the_limit_gets_in_alone_or_it_could_never_come():
    door = Admission(4, sequences=8)
    assert door.enter(9) is True
    assert door.enter() is False
    door.leave(9)
    assert door.enter() is True
    assert door.enter(9) is False


def test_leaving_without_having_entered_is_a_mistake():
    with pytest.raises(AssertionError, match="leave without enter"):
        Admission(4, sequences=8).leave()

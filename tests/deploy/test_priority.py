"""Classes of requests: which one a request has, by its number, its key and its pin."""

import pytest

from deploy.access.priority import Priority, ranked
from deploy.front.replies import Refused

HIGH, NORMAL, BATCH = Priority


@pytest.mark.parametrize(
    ("stated", "own", "pinned", "wanted"),
    [
        (0, None, False, (NORMAL, 0)),
        (0, None, True, (HIGH, -1)),
        (0, BATCH, False, (BATCH, 1)),
        (0, BATCH, True, (BATCH, 1)),  # what the key says holds for its pinned requests too
        (0, HIGH, False, (HIGH, -1)),
        (5, None, False, (BATCH, 5)),
        (5, None, True, (BATCH, 5)),
        (5, BATCH, False, (BATCH, 5)),
        (5, HIGH, False, (BATCH, 5)),
        (-5, HIGH, False, (HIGH, -5)),
    ],
)
def test_the_class_of_a_request_with_a_key(stated, own, pinned, wanted):
    assert ranked(stated, own, anything=False, pinned=pinned) == wanted


@pytest.mark.parametrize("own", [None, NORMAL, BATCH])
def test_no_request_gets_a_better_class_than_its_key(own):
    with pytest.raises(Refused, match=r"priority -1 is of the class high"):
        ranked(-1, own, anything=False, pinned=False)


def test_without_keys_a_request_may_say_what_it_wants():
    assert ranked(-1, None, anything=True, pinned=False) == (HIGH, -1)

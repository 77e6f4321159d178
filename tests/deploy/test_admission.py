"""A replica's door: who gets in at which scale, how many tokens, which class, and before which deadline."""

import heapq
import random

import pytest
from hand_clock import HandClock

from deploy.access.admission import USUAL_OUTPUT_TOKENS, Admission, Asked, NoRoom, Reason
from deploy.access.priority import Priority

HIGH, NORMAL, BATCH = Priority


def refused(door, *args, **kwargs):
    """Whom the door refuses, and why; nobody else takes it."""
    with pytest.raises(NoRoom) as error:
        door.enter(*args, **kwargs)
    door.turned_away(error.value)
    return error.value


def sequences(count):
    return Asked(prompts=count)


# -- sequences ---------------------------------------------------------------------------------------------------------


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
def test_the_limits(limit, scale, wanted):
    door = Admission(limit, sequences=8, tokens=1000)
    door.scale = scale
    assert (door.limit, door.token_limit) == (wanted, 1000 * scale)


def test_those_inside_stay_when_the_limit_falls_and_those_that_come_are_counted():
    door = Admission(4, sequences=8)
    places = [door.enter() for _ in range(4)]
    assert refused(door).reason is Reason.SEQUENCES
    door.scale = 0.5
    assert (door.inside, door.refused) == (4, 1)
    places.pop().leave()
    places.pop().leave()
    assert "computes 2 sequences and takes 2" in str(refused(door))
    places.pop().leave()
    door.enter()
    assert (door.inside, door.refused) == (2, 2)


def test_a_request_counts_as_the_sequences_it_makes_the_engine_compute():
    door = Admission(8, sequences=8)
    large = door.enter(Asked(prompts=2, samples=3))
    refused(door, sequences(3))
    door.enter(sequences(2))
    assert (door.inside, door.refused) == (8, 1)
    large.leave()
    assert door.inside == 2


def test_a_request_that_is_larger_than_the_limit_gets_in_alone_or_it_could_never_come():
    door = Admission(4, sequences=8, tokens=100)
    alone = door.enter(Asked(prompts=9, output_tokens=50))
    refused(door)
    alone.leave()
    door.enter()
    refused(door, sequences(9))


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_an_answer_beyond_the_models_context_counts_as_the_context_and_is_left_to_the_engine_to_refuse():
    door = Admission(None, sequences=8, tokens=1000, longest=200)
    door.enter()
    place = door.enter(Asked(prompt_tokens=10, output_tokens=2**31 - 1))
    assert place.tokens == 200


def test_a_chats_template_is_no_reason_to_refuse_what_is_in():
    door = Admission(None, sequences=8, tokens=1000)
    place = door.enter(Asked(prompt_tokens=100, output_tokens=100))
    door.enter(Asked(prompt_tokens=800))
    place.settle(prompt_tokens=120, most_output_tokens=500)
    assert door.tokens_inside == 1020
    refused(door)


def test_tokens_are_bounded_though_there_are_few_sequences():
    door = Admission(100, sequences=8, tokens=1000)
    door.enter(Asked(prompt_tokens=800, output_tokens=100))
    error = refused(door, Asked(prompt_tokens=100, output_tokens=1))
    assert error.reason is Reason.TOKENS
    assert "expected to need 900 tokens, this one 101 more, and it takes 1000" in str(error)
    door.enter(Asked(prompt_tokens=99, output_tokens=1))
    assert (door.tokens_inside, door.refusals[Reason.TOKENS, NORMAL]) == (1000, 1)


def test_each_of_several_prompts_takes_the_place_of_its_part_of_the_estimate():
    door = Admission(None, sequences=8, tokens=1000)
    place = door.enter(Asked(prompts=2, samples=2, prompt_tokens=20, output_tokens=10))
    assert door.tokens_inside == 80
    place.settle(prompt_tokens=7, most_output_tokens=10)
    assert door.tokens_inside == 40 + 2 * 17
    place.settle(prompt_tokens=9, most_output_tokens=10)
    assert door.tokens_inside == 2 * 17 + 2 * 19
    place.leave()
    assert door.tokens_inside == 0


def test_a_request_that_turns_out_too_large_is_refused_then_unless_it_is_alone():
    door = Admission(None, sequences=8, tokens=1000)
    first = door.enter(Asked(prompt_tokens=10, output_tokens=10))
    first.settle(2000, 10)
    first.leave()
    door.enter(Asked(prompt_tokens=500, output_tokens=100))
    place = door.enter(Asked(prompt_tokens=10, output_tokens=10))
    with pytest.raises(NoRoom) as error:
        place.settle(1000, 10)
    assert error.value.reason is Reason.TOKENS
    assert door.tokens_inside == 620, "nothing has changed"
    place.leave()
    assert door.tokens_inside == 600


def test_an_answer_without_a_limit_counts_as_twice_what_answers_have_been_and_at_most_as_it_can_be():
    door = Admission(None, sequences=8, tokens=10_000)
    place = door.enter(Asked(prompt_tokens=10, output_tokens=None))
    assert door.tokens_inside == 10 + 2 * USUAL_OUTPUT_TOKENS
    place.settle(prompt_tokens=10, most_output_tokens=100)
    assert door.tokens_inside == 110
    place.leave(completion_tokens=40)
    for _ in range(1000):
        door.enter(Asked(output_tokens=None)).leave(completion_tokens=40)
    assert door.usual_output_tokens == 40
    assert door.enter(Asked(output_tokens=None)).tokens == 80


def test_a_limit_that_answers_never_come_near_is_not_counted_in_full_and_a_short_one_is():
    door = Admission(None, sequences=8, tokens=10_000, longest=8192)
    for _ in range(1000):
        door.enter(Asked(output_tokens=4096)).leave(completion_tokens=100)
    places = [door.enter(Asked(prompt_tokens=300, output_tokens=4096)) for _ in range(20)]
    assert door.tokens_inside == 20 * 500, "with 4096 each the third would have been refused"
    places[0].settle(prompt_tokens=310, most_output_tokens=4096)
    assert door.tokens_inside == 20 * 500 + 10
    refused(door, Asked(prompt_tokens=300, output_tokens=4096))
    places[0].leave()
    assert door.enter(Asked(prompt_tokens=300, output_tokens=16)).tokens == 316


# -- classes -----------------------------------------------------------------------------------------------------------


def test_the_lower_the_class_the_sooner_it_is_refused_while_the_replica_fills():
    door = Admission(8, sequences=8)
    entered = {priority: 0 for priority in Priority}
    for priority in (BATCH, NORMAL, HIGH):
        while True:
            try:
                door.enter(priority=priority)
            except NoRoom:
                break
            entered[priority] += 1
    assert entered == {BATCH: 4, NORMAL: 4, HIGH: 2}
    assert [door.refusals[Reason.SEQUENCES, each] for each in Priority] == [1, 1, 1]


def test_a_class_has_its_share_of_the_tokens_as_well():
    door = Admission(None, sequences=8, tokens=1000)
    door.enter(Asked(prompt_tokens=450))
    assert refused(door, Asked(prompt_tokens=100), BATCH).reason is Reason.TOKENS
    door.enter(Asked(prompt_tokens=550))
    refused(door, Asked(prompt_tokens=1))
    door.enter(Asked(prompt_tokens=250), HIGH)


# -- deadlines ---------------------------------------------------------------------------------------------------------


def busy(clock, sequences=2, inside=6, **more):
    """A door with a queue, whose engine of two sequences ends one every second."""
    door = Admission(None, sequences=sequences, clock=clock, **more)
    places = [door.enter() for _ in range(inside)]
    for _ in range(20):
        clock.now_s += 1.0
        places.pop(0).leave(completion_tokens=1)
        places.append(door.enter())
    return door, places


def test_the_wait_is_that_of_those_ahead_at_the_pace_of_those_that_ended():
    door, places = busy(HandClock())
    assert door.expected_wait_s() == pytest.approx(5.0, rel=0.1), "four wait, and it comes fifth"
    for place in places[:4]:
        place.leave()
    assert door.expected_wait_s() == pytest.approx(1.0, rel=0.1)
    places[4].leave()
    assert door.expected_wait_s() == 0.0


def test_who_would_be_begun_too_late_is_refused_at_once_with_the_time_after_which_it_would_not():
    door, _ = busy(HandClock())
    door.enter(deadline_s=7.0).leave()
    error = refused(door, deadline_s=2.0)
    assert error.reason is Reason.DEADLINE
    assert error.retry_after_s == 4, "5 s of waiting, of which 0.8 * 2 s are allowed"
    assert "in about 4.8 s, its queue deadline ends in 2.0 s" in str(error)
    door.enter()  # one that can wait


def test_nobody_is_refused_for_a_wait_that_nobody_knows():
    door = Admission(None, sequences=1, clock=HandClock())
    for _ in range(10):
        door.enter(deadline_s=0.1)
    assert door.expected_wait_s() is None


def test_what_was_learned_is_forgotten_when_there_has_been_no_queue_for_long():
    clock = HandClock()
    door, places = busy(clock)
    for place in places[:-2]:
        place.leave()
    clock.now_s += 31
    assert door.expected_wait_s() is None


def test_those_that_leave_without_an_answer_say_nothing_of_the_engines_pace():
    clock = HandClock()
    door, _ = busy(clock)
    before = door.expected_wait_s()
    for _ in range(100):
        door.enter().leave()
    assert door.expected_wait_s() == pytest.approx(before)


def test_an_engine_whose_cache_is_full_computes_fewer_at_once_than_it_could():
    door, _ = busy(HandClock(), sequences=2)
    door.engine_has(running=1, waiting=5)
    assert door.expected_wait_s() == pytest.approx(5.0, rel=0.1), "may have come just now"
    door.engine_has(running=1, waiting=5)
    assert door.expected_wait_s() == pytest.approx(6.0, rel=0.1)
    door.engine_has(running=2, waiting=0)
    assert door.expected_wait_s() == pytest.approx(5.0, rel=0.1)


def test_where_the_engine_goes_by_priority_a_request_overtakes_the_lower_classes():
    door, _ = busy(HandClock(), in_order=False)
    assert door.expected_wait_s(BATCH) == door.expected_wait_s(NORMAL) == pytest.approx(5.0, rel=0.1)
    assert door.expected_wait_s(HIGH) == pytest.approx(1.0, rel=0.1)


def test_a_refusal_for_want_of_room_says_when_there_will_be_some():
    clock = HandClock()
    door, _ = busy(clock, tokens=100_000)
    door.scale = 0.25  # of 8 sequences
    assert refused(door).retry_after_s in (5, 6), "five of the six inside must have ended"


def test_batch_is_no_load_that_the_controller_should_make_room_for():
    door = Admission(1, sequences=8)
    door.enter()
    refused(door, priority=BATCH)
    assert (door.refused, door.refusals[Reason.SEQUENCES, BATCH]) == (0, 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [0.7, 3.0])
def test_at_three_times_the_capacity_those_let_in_begin_in_time_and_the_engine_is_never_idle(seed, load):
    """A queue before eight places, whose requests take a second each, give or take; virtual time."""
    draw = random.Random(seed)
    clock, places, deadline_s, end_s = HandClock(0.0), 8, 1.0, 300.0
    door = Admission(None, sequences=places, clock=clock)
    queue, running, waits, rejected = [], [], [], 0
    next_s = 0.0
    while next_s < end_s:
        if running and running[0][0] <= next_s:
            clock.now_s, _, place = heapq.heappop(running)
            place.leave(completion_tokens=1)
        else:
            clock.now_s = next_s
            next_s += draw.expovariate(load * places)
            try:
                queue.append((clock.now_s, door.enter(deadline_s=deadline_s)))
            except NoRoom:
                rejected += 1
        while queue and len(running) < places:
            arrived_s, place = queue.pop(0)
            waits.append((clock.now_s, clock.now_s - arrived_s))
            heapq.heappush(running, (clock.now_s + draw.uniform(0.5, 1.5), id(place), place))
    settled = [wait_s for at_s, wait_s in waits if at_s > 30.0]
    in_time = sum(wait_s <= deadline_s for wait_s in settled) / len(settled)
    used = len(settled) / (places * (end_s - 30.0))
    if load < 1:
        assert rejected <= 0.01 * len(waits)
    else:
        assert in_time > 0.95, in_time
        assert used > 0.97, used
        assert 0.6 < rejected / (rejected + len(waits)) < 0.7


def test_what_is_inside_is_told_as_a_share_of_the_nearer_limit_whatever_the_scale():
    door = Admission(10, sequences=8, tokens=1000)
    places = [door.enter(Asked(prompt_tokens=10, output_tokens=10)) for _ in range(4)]
    assert door.inside_share == pytest.approx(0.4)
    door.scale = 0.1
    assert door.inside_share == pytest.approx(0.4)
    places[0].leave()
    assert door.inside_share == pytest.approx(0.3)
    narrow = Admission(10, sequences=8, tokens=40)
    narrow.enter(Asked(prompt_tokens=10, output_tokens=10))
    assert narrow.inside_share == pytest.approx(0.5)
    unbounded = Admission(None, sequences=5)
    unbounded.enter()
    assert unbounded.inside_share == pytest.approx(1 / 20)

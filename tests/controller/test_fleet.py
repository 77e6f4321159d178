"""What the fleet shows of the replicas: who is there, in which order, and how old each view is."""

from controller_builders import make_snapshot
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.fleet import FORGET_AFTER_S, Fleet

# (replica, seconds since the last, whether it has started anew, FP16 steps since its last)
reports = st.lists(
    st.tuples(
        st.sampled_from(["r0", "r1", "r10", "r2"]),
        st.sampled_from([0.0, 0.25, 1.0, 12.0]),
        st.sampled_from([False, False, False, True]),
        st.integers(0, 1),
    ),
    max_size=40,
)


@given(reports)
def test_views_are_of_the_last_snapshots_by_id_and_grow_old(
    heard: list[tuple[str, float, bool, int]],
) -> None:
    """Against one dictionary for each thing that is known of a replica."""
    fleet, now_s = Fleet(), 0.0
    starts: dict[str, int] = {}
    heard_at_s: dict[str, float] = {}
    shown: dict[str, tuple[int, float, int]] = {}  # replica -> seq, arrival, steps of its last snapshot
    for seq, (name, pause_s, fresh, more_steps) in enumerate(heard):
        now_s += pause_s
        if fresh:
            starts[name] = starts.get(name, 0) + 1
            shown.pop(name, None)
        steps = (shown[name][2] if name in shown else 100) + more_steps
        snapshot = make_snapshot(
            replica_id=name,
            incarnation=f"start {starts.get(name, 0)}",
            seq=seq,
            steps_fp16=steps,
        )
        fleet.on_snapshot(now_s, snapshot)
        heard_at_s[name] = now_s
        shown[name] = seq, now_s, steps
        fleet.forget_silent(now_s)
        for gone in [one for one, at_s in heard_at_s.items() if at_s < now_s - FORGET_AFTER_S]:
            del heard_at_s[gone]
            shown.pop(gone, None)
        assert [(view.replica_id, view.snapshot.seq, view.age_s) for view in fleet.views(now_s)] == [
            (one, seq, now_s - at_s) for one, (seq, at_s, _) in sorted(shown.items())
        ]
        assert fleet.ids == set(heard_at_s)

"""Many replicas as numbers in rows, so that a policy looks at a thousand of them with a few array operations. Pure.

A ``Table`` is a sequence of views, sorted by id, whose numbers also lie in one structured array of float64: ``rows["waiting"]``
is that number of every replica. Whoever adds up replicas may take either way and must get the same result to the last bit:
sums run from the first replica to the last (``in_order_sum``), because the order of additions decides how they round.

Arrays cost some microseconds each however short they are: below ``FEWEST`` replicas plain tuples of views are faster.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from math import inf, nan
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from controller.fleet import http_path
from controller.fleet.view import Replicas, ReplicaView
from nestedfp.modes import Mode

FEWEST = 48  # replicas for which arrays pay
Rows: TypeAlias = npt.NDArray[np.void]  # [replicas] of ROW
Mask: TypeAlias = npt.NDArray[np.bool_]  # [replicas]

FIELDS = (
    "age_s",
    "fp16_step_age_s",  # nan: no FP16 step was ever counted
    "path_age_s",  # nan: the path never was the limit
    "standing_tokens",
    # of the snapshot; flags are 1 or 0
    "ready",
    "ready_for_s",  # inf: not reported
    "cold",
    "stats_age_s",
    "progress_age_s",  # 0: not reported
    "fp16_only",
    "in_fp8",
    "waiting",
    "waiting_tokens",
    "oldest_wait_s",
    "running",
    "kv_usage",
    "step_ms_fp16",  # nan: no such step yet
    "step_ms_fp8",
    "ttft_count",
    "ttft_p90_ms",  # this and the next two without what the path has added
    "tpot_count",
    "tpot_p50_ms",
    "tpot_p90_ms",
    "in_path",
    "path_tokens",  # prompt tokens of the requests in the path
    # rates; all 0 where they are not known
    "rated",
    "arrived_tokens_per_s",
    "tokens_fp16_per_s",
    "tokens_fp8_per_s",
    "queue_growth_tokens_per_s",
    "steps_fp16_per_s",
    "steps_fp8_per_s",
    "slo_evaluated_per_s",
    "within_slo_per_s",
)
ROW = np.dtype([(name, np.float64) for name in FIELDS])
PACKED = struct.Struct(f"={len(FIELDS)}d")
_NO_RATES = (0.0,) * 9


def numbers(
    view: ReplicaView, age_s: float, fp16_step_age_s: float | None, path_age_s: float | None
) -> tuple[float, ...]:
    """The row of a replica, in the order of ``FIELDS``; the ages are the caller's to state."""
    snapshot, rates = view.snapshot, view.rates
    ttft, tpot = snapshot.ttft, snapshot.tpot
    fp16_ms, fp8_ms, ready_for_s = snapshot.step_ms_fp16, snapshot.step_ms_fp8, snapshot.ready_for_s
    return (
        age_s,
        nan if fp16_step_age_s is None else fp16_step_age_s,
        nan if path_age_s is None else path_age_s,
        view.standing_tokens,
        snapshot.ready,
        inf if ready_for_s is None else ready_for_s,
        view.cold,
        snapshot.stats_age_s,
        snapshot.progress_age_s or 0.0,
        snapshot.fp16_only,
        snapshot.mode is Mode.FP8,
        snapshot.waiting,
        snapshot.waiting_tokens,
        snapshot.oldest_wait_s,
        snapshot.running,
        snapshot.kv_usage,
        nan if fp16_ms is None else fp16_ms,
        nan if fp8_ms is None else fp8_ms,
        *(
            (ttft.count, ttft.p90_ms, tpot.count, tpot.p50_ms, tpot.p90_ms, 0.0, 0.0)
            if snapshot.path is None
            else (
                ttft.count,
                http_path.engine_ttft_ms(snapshot, ttft.p90_ms),
                tpot.count,
                http_path.engine_tpot_ms(snapshot, tpot.p50_ms),
                http_path.engine_tpot_ms(snapshot, tpot.p90_ms),
                snapshot.path.in_path,
                http_path.queued_tokens(snapshot, rates),
            )
        ),
        *(
            _NO_RATES
            if rates is None
            else (
                1.0,
                rates.arrived_tokens_per_s,
                rates.tokens_fp16_per_s,
                rates.tokens_fp8_per_s,
                rates.queue_growth_tokens_per_s,
                rates.steps_fp16_per_s,
                rates.steps_fp8_per_s,
                rates.slo_evaluated_per_s,
                rates.within_slo_per_s,
            )
        ),
    )


class Table:
    """Replicas as rows of numbers, and as views for whoever asks for one.

    Args:
        rows: the numbers; not changed afterwards.
        ids: of the replicas, sorted.
        view_of: makes the view of one.
    """

    __slots__ = ("_view_of", "ids", "rows")

    def __init__(self, rows: Rows, ids: Sequence[str], view_of: Callable[[str], ReplicaView]) -> None:
        self.rows, self.ids, self._view_of = rows, ids, view_of

    @classmethod
    def of(cls, views: Replicas) -> "Table":
        """A table of these views, which must be sorted by id."""
        rows = np.array([numbers(view, view.age_s, view.fp16_step_age_s, view.path_age_s) for view in views], dtype=ROW)
        return cls(rows, [view.replica_id for view in views], {view.replica_id: view for view in views}.__getitem__)

    def where(self, mask: Mask) -> "Table":
        """The replicas for which the mask holds."""
        if mask.all():
            return self
        return Table(self.rows[mask], list(compress(self.ids, mask.tolist())), self._view_of)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[ReplicaView]:
        return map(self._view_of, self.ids)

    @overload
    def __getitem__(self, index: int) -> ReplicaView: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ReplicaView, ...]: ...
    def __getitem__(self, index: int | slice) -> ReplicaView | tuple[ReplicaView, ...]:
        if isinstance(index, slice):
            return tuple(map(self._view_of, self.ids[index]))
        return self._view_of(self.ids[index])


def ids_of(replicas: Replicas) -> Sequence[str]:
    """Their ids, in order."""
    return replicas.ids if isinstance(replicas, Table) else [view.snapshot.replica_id for view in replicas]


def path_limits(rows: Rows) -> Mask:
    """``http_path.limits`` of each replica. Shape (replicas,), bool."""
    limited: Mask = rows["path_age_s"] <= http_path.MEMORY_S  # nan compares as false
    return limited


def path_limited_count(replicas: Replicas) -> int:
    """How many replicas the path limits."""
    if isinstance(replicas, Table):
        return int(np.count_nonzero(path_limits(replicas.rows)))
    return sum([http_path.limits(view) for view in replicas])


def in_order_sum(values: npt.NDArray[np.float64]) -> float:
    """The sum from first to last; ``numpy.sum`` adds in pairs, which rounds otherwise."""
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


WIDTH = len(FIELDS)


class RowStore:
    """One row of numbers for each replica."""

    def __init__(self) -> None:
        self._rows = np.full((64, WIDTH), nan)  # [slots, WIDTH]
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    def put(self, view: ReplicaView, arrived_s: float, fp16_step_at_s: float | None, path_at_s: float | None) -> None:
        """Take the numbers of a view over."""
        slot = self._slots.get(view.snapshot.replica_id)
        if slot is None:
            slot = self._take_slot(view.snapshot.replica_id)
        PACKED.pack_into(self._rows.data, slot * PACKED.size, *numbers(view, arrived_s, fp16_step_at_s, path_at_s))

    def drop(self, replica_id: str) -> None:
        """Forget a replica's numbers, if there are any."""
        slot = self._slots.pop(replica_id, None)
        if slot is not None:
            self._free.append(slot)

    def __contains__(self, replica_id: object) -> bool:
        return replica_id in self._slots

    def slots(self, replica_ids: Sequence[str]) -> list[int]:
        """Where the rows of these replicas are; good until one is dropped."""
        return [self._slots[replica_id] for replica_id in replica_ids]

    def rows(self, slots: Sequence[int], now_s: float) -> Rows:
        """A copy of these rows with ages in the place of times."""
        copied = self._rows[slots].view(ROW)[:, 0]
        for name in ("age_s", "fp16_step_age_s", "path_age_s"):
            np.subtract(now_s, copied[name], out=copied[name])
        return copied

    def _take_slot(self, replica_id: str) -> int:
        slot = self._free.pop() if self._free else len(self._slots)
        if slot == len(self._rows):
            self._rows = np.concatenate((self._rows, np.full_like(self._rows, nan)))
        self._slots[replica_id] = slot
        return slot

"""Where the fleet keeps the rows of its replicas: written in place as snapshots come, copied once for every step. Zero I/O.

A stored row has the *times* at which the snapshot arrived, an FP16 step was last counted and the path last was
the limit where a table has ages.
"""

from collections.abc import Sequence
from math import nan

import numpy as np

from controller.policies.base import ReplicaView
from controller.policies.table import FIELDS, PACKED, ROW, Rows, numbers

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

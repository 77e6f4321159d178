"""How many replicas run FP8, and which: the arithmetic of the scope k_of_n. Pure.

With the offered load L16 and L8 (in units of what all N replicas serve in FP16 and in FP8), a replica in FP8 serves
r = L16 / L8 times what one in FP16 does, and K replicas in FP8 serve the load at a utilisation of at most u when

    (N - K) + K * r >= L16 * N / u
"""

import math
from collections.abc import Collection
from typing import Annotated

import numpy as np
from pydantic import Field

from controller.policies.base import Replicas, Settings
from controller.policies.table import Table


class KOfN(Settings):
    """Parameters of the scope k_of_n."""

    target_utilisation: Annotated[float, Field(gt=0, le=1)] = 0.85
    shrink_margin: Annotated[float, Field(gt=0, le=1)] = 0.9  # a smaller K must hold at this times the target
    grow_every_s: Annotated[float, Field(ge=0)] = 1.0  # pause after growing, for its effect to be seen


def needed(replicas: int, fp16_load: float | None, fp8_load: float | None, utilisation: float) -> int | None:
    """The smallest K that serves the load; None when the loads are not known or FP8 is no faster."""
    if fp16_load is None or fp8_load is None or replicas == 0:
        return None
    if fp16_load <= utilisation:
        return 0
    if fp8_load <= 0 or fp16_load <= fp8_load:
        return None
    ratio = fp16_load / fp8_load
    wanted = replicas * (fp16_load / utilisation - 1.0) / (ratio - 1.0)
    return min(replicas, math.ceil(wanted - 1e-9))


def grown(present: int, replicas: int, needed_count: int | None) -> int:
    """K while the SLO is in danger: what the load needs, but more than now; doubled when that is not known."""
    if needed_count is not None and needed_count > present:
        return needed_count
    return min(replicas, max(1, 2 * present))


def chosen(ready: Replicas, in_fp8: Collection[str], wanted: int, frozen: Collection[str] = ()) -> frozenset[str]:
    """The replicas that run FP8: those that do already first, then the most loaded; of several, by name.

    ``frozen`` replicas keep what they do, because they have changed too often.
    """
    table = ready if isinstance(ready, Table) else Table.of(tuple(sorted(ready, key=lambda view: view.replica_id)))
    table = table.where(table.rows["fp16_only"] == 0)
    stay = {replica_id for replica_id in table.ids if replica_id in frozen and replica_id in in_fp8}
    if frozen:
        table = table.where(np.array([replica_id not in frozen for replica_id in table.ids], dtype=bool))
    rows, idle = table.rows, np.array([replica_id not in in_fp8 for replica_id in table.ids], dtype=bool)
    # The last key counts most; equals stay in the order of their names.
    order = np.lexsort((-rows["running"], -rows["waiting_tokens"], -rows["oldest_wait_s"], idle))
    return frozenset(stay) | {table.ids[place] for place in order[: max(0, wanted - len(stay))].tolist()}

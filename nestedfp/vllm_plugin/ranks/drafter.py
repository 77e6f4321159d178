"""A drafter computes in FP16, whatever the step that it follows did."""

import functools
from typing import Any

from nestedfp.kernels import ops
from nestedfp.modes import Mode


def draft_in_fp16(runner: Any) -> None:
    """Have a runner's drafter, if there is one, compute so: in serving, and where steps are timed."""
    drafter = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
    if drafter is None:
        return
    propose = drafter.propose

    @functools.wraps(propose)
    def in_fp16(*args: Any, **kwargs: Any) -> Any:
        ops.set_mode(Mode.FP16)
        return propose(*args, **kwargs)

    drafter.propose = in_fp16

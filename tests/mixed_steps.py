"""A tiny rule of precision by row for engines whose core is in this process: some requests are exact, the others fast."""

from contextlib import contextmanager


@contextmanager
def exact_requests(llm, numbers):
    """Have the requests with these numbers, in the order in which they come, run exact, the others by the scheduler's mode.

    Yields:
        A list of (exact requests, fast requests), one of each mixed step.
    """
    from nestedfp.modes import Mode

    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    original, seen, mixed = scheduler.schedule, {}, []

    def schedule(*args, **kwargs):
        output = original(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            seen[new.req_id] = len(seen)
        exact = frozenset(rid for rid in output.num_scheduled_tokens if seen[rid] in numbers)
        fast = output.num_scheduled_tokens.keys() - exact
        if exact and not fast:
            output.nestedfp_mode = Mode.FP16
        elif exact and output.nestedfp_mode is Mode.FP8:
            output.nestedfp_exact = exact
            mixed.append((len(exact), len(fast)))
        return output

    scheduler.schedule = schedule
    try:
        yield mixed
    finally:
        del scheduler.schedule

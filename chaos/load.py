"""Open loads of a campaign, sent by the load test's sender."""

from collections.abc import Iterable
from pathlib import Path

from loadtest.sender.background import BackgroundLoad
from loadtest.sender.plan import PlannedRequest, SendPlan
from loadtest.sender.prompts import TOKEN_IDS


def open_load(
    url: str, model_id: str, requests: Iterable[PlannedRequest], duration_s: float, patience_s: float, records: Path
) -> BackgroundLoad:
    """Return a load that sends requests at their times.

    Args:
        url: of the service.
        model_id: that it serves.
        requests: in the order of their times.
        duration_s: of the load.
        patience_s: that a request may take.
        records: the file that gets a record of each.
    """
    plan = SendPlan(
        kind="open",
        policy="plain",
        run=0,
        url=url,
        model=model_id,
        requests=tuple(requests),
        duration_s=duration_s,
        drain_s=patience_s,
        request_timeout_s=patience_s,
        seed=0,
        token_ids=TOKEN_IDS,
        records_path=records,
    )
    return BackgroundLoad(plan)

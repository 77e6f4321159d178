"""The control routes' way to the controller when Ray's head does not answer."""

import asyncio
import threading
import time

import pytest
from fastapi import HTTPException


@pytest.mark.filterwarnings("ignore")  # of Ray Serve's import
def test_the_control_routes_answer_although_rays_head_hangs(monkeypatch):
    from deploy import control_app

    released = threading.Event()

    def hanging(all_namespaces):
        released.wait(30)
        return []

    monkeypatch.setattr(control_app.ray.util, "list_named_actors", hanging)
    monkeypatch.setattr(control_app, "LOOKUP_TIMEOUT_S", 0.2)

    async def asked():
        """The route's error, and how long the loop stood still meanwhile."""
        asking = asyncio.create_task(control_app.Control("a").status())
        longest_s, before_s = 0.0, time.monotonic()
        while not asking.done():
            await asyncio.sleep(0.01)
            now_s = time.monotonic()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        released.set()
        with pytest.raises(HTTPException) as caught:
            await asking
        return caught.value, longest_s

    error, longest_s = asyncio.run(asked())
    assert (error.status_code, error.headers) == (503, {"Retry-After": "2"})
    assert longest_s < 10, "other routes wait for this one"

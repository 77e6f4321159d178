"""Which tests run side by side (``make test``: two workers), and how patient they are with a busy machine."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing where engines start beside it.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the running service to one worker, and begin with them; other files go to whoever is free.

    Most of their time passes in waiting for a start, and two services at once would be too much for two cores.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("service" if _needs_service(item) else str(item.path)))
    items.sort(key=lambda item: not _needs_service(item))


def _needs_service(item: pytest.Item) -> bool:
    return item.get_closest_marker("serve") is not None

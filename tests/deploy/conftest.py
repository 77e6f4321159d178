"""What tests of the deployment share."""

import pytest
import ray_nodes
from hand_clock import HandClock


@pytest.fixture
def clock():
    """Seconds that pass when the test says so."""
    return HandClock()


@pytest.fixture(scope="module")
def cluster(config):
    """A Ray of two nodes for the service that the file's own fixture ``config`` has written down."""
    with ray_nodes.cluster(config) as found:
        yield found

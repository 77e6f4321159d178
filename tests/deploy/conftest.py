"""What tests of the deployment share."""

import pytest
from hand_clock import HandClock


@pytest.fixture
def clock():
    """Seconds that pass when the test says so."""
    return HandClock()

"""The service that all tests of this folder ask."""

import keyed_service
import otlp_collector
import pytest


@pytest.fixture(scope="package")
def collector():
    """Where its traces go."""
    with otlp_collector.running() as found:
        yield found


@pytest.fixture(scope="package")
def service(collector, tmp_path_factory):
    with keyed_service.started(tmp_path_factory.mktemp("service"), collector.endpoint) as found:
        yield found

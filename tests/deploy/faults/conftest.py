"""The service that the tests of a file attack and break: one for each file."""

import fault_service
import httpx
import pytest


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with fault_service.started(tmp_path_factory.mktemp("faults")) as service:
        yield service


@pytest.fixture
def client(service):
    with httpx.Client(base_url=fault_service.URL, timeout=120, trust_env=False) as client:
        yield client

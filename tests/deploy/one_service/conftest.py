"""The service that all tests of this folder ask."""

import keyed_service
import pytest


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    with keyed_service.started(tmp_path_factory.mktemp("service")) as found:
        yield found

"""What tests of a running HAProxy share: a folder for its sockets, and replicas behind it."""

import shutil

import pytest
from haproxy_run import Replica
from live_service import wait_until

from deploy import environment


@pytest.fixture
def folder():
    """Where HAProxy's sockets lie: their paths may have 107 characters, and pytest's own folders are longer."""
    path = environment.private_folder()
    yield path

    def removed():
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    assert wait_until(removed, 10), "a watcher may just be leaving its last word in it, no more"


@pytest.fixture
def replicas():
    """Makes servers in the place of replicas, from what they answer, and ends them."""
    made = []

    def make(answer):
        made.append(Replica(answer))
        return made[-1]

    yield make
    for replica in made:
        replica.stop()

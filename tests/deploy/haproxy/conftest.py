"""What tests of a running HAProxy share: a folder for its sockets, and replicas behind it."""

import contextlib
import shutil
from typing import NamedTuple

import pytest
from haproxy_calls import in_front, up
from haproxy_run import Replica, ok

from deploy import environment


@contextlib.contextmanager
def short_folder():
    """Where HAProxy's sockets lie: their paths may have 107 characters, and pytest's own folders are longer."""
    path = environment.private_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder():
    with short_folder() as path:
        yield path


class Served(NamedTuple):
    """An HAProxy and what stands behind it."""

    port: int
    app: Replica
    control: Replica


@pytest.fixture(scope="module")
def one_haproxy():
    app, control = Replica(ok("app")), Replica(ok("control"))
    with short_folder() as path, in_front(path, app=[app], control=[control]) as (_, port):
        up(port)
        up(port, "/control/up")
        yield Served(port, app, control)
    app.stop()
    control.stop()


@pytest.fixture
def served(one_haproxy):
    """The HAProxy of all tests of a file that leave it as it was, and whose replicas have seen nothing yet."""
    one_haproxy.app.seen.clear()
    one_haproxy.control.seen.clear()
    return one_haproxy


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

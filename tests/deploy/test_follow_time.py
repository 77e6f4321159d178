"""How long a cluster takes to follow a snapshot: with the live parts, all but Ray and the engines."""

import asyncio
import statistics

from benchmarks.control import follow_time


def test_every_replica_follows_a_queue_into_fp8_and_its_end_out_of_it():
    times_ms = asyncio.run(follow_time.measure(replicas=4, switches=8))
    assert len(times_ms) == 8
    assert 0 < statistics.median(times_ms) < 2000  # alone on a machine some 40: a step of the controller and the way

"""Which GPU a replica's only rank runs on, where it is no Ray actor of its own: Ray's bookkeeping, which needs no GPU."""

import subprocess
import sys

import pytest
from processes import ROOT

SCRIPT = """
import ray
from ray.util.placement_group import placement_group
from deploy.replica.vllm_engine import gpus_of

ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
groups = [placement_group([{"CPU": 0.1, "GPU": 1}]) for _ in range(2)]
ray.get([group.ready() for group in groups])
first = [gpus_of(group) for group in groups]
assert first == [gpus_of(group) for group in groups], "a group keeps its GPU"
print(sorted(first))
"""


@pytest.mark.serve
def test_every_replica_finds_the_gpu_that_its_placement_group_holds() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[['0'], ['1']]"

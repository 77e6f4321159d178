"""A plain vLLM engine in a process whose core this plugin has patched. Run: ``pytest -q tests/plugin/test_plain_beside.py``"""

from types import SimpleNamespace

import vllm_parts  # vLLM, imported with its warnings kept quiet
from vllm.v1.engine.core import EngineCore

assert vllm_parts.MODEL


def test_a_plain_engine_in_the_same_process_is_asked_nothing_of_ours():
    added = []
    core = SimpleNamespace(scheduler=SimpleNamespace(add_request=added.append))
    engine = vllm_parts.Engine()  # ours: the core is patched
    engine.add(vllm_parts.engine_request("a", 4))
    (request,) = engine.scheduler.requests.values()
    EngineCore.add_request(core, request)
    assert added == [request]

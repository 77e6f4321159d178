"""Speculative decoding on a GPU, with CUDA graphs for both precisions: exact answers are plain vLLM's without a drafter.

Run: ``pytest -q -m gpu tests/plugin/test_gpu_drafts.py``. The engines start side by side; the model and its drafters are small.
"""

from concurrent.futures import ThreadPoolExecutor

import drafters
import pytest
import torch
from processes import run_json

pytestmark = pytest.mark.gpu

SMALL = {"gpu_memory_utilization": 0.15, "max_num_seqs": 32, "max_num_batched_tokens": 512, "seed": 0}
DRAFTS = {"eagle": 3, "eagle3": 2, "mtp": 1}


@pytest.fixture(scope="module", autouse=True)
def hopper():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What plain vLLM made of the first run without a drafter, and each engine with one of all of them."""
    folder = tmp_path_factory.mktemp("drafters")
    models = {"eagle": str(drafters.MODEL), "eagle3": str(drafters.MODEL), "mtp": drafters.mtp_model(folder / "mtp")}
    heads = {
        "eagle": {"model": drafters.eagle_head(folder / "eagle")},
        "eagle3": {"model": drafters.eagle3_head(folder / "eagle3")},
        "mtp": {},
    }
    payloads = {
        "plain": {"engines": [{"model": str(drafters.MODEL), **SMALL}], "runs": drafters.RUNS[:1], "nested": False}
    }
    for method, drafts in DRAFTS.items():
        speculative = {"method": method, **heads[method], "num_speculative_tokens": drafts}
        engine = {"model": models[method], "quantization": "nestedfp", "speculative_config": speculative, **SMALL}
        payloads[method] = {"engines": [engine], "runs": drafters.RUNS}

    def run(payload):
        return run_json("engine_scenario.py", payload, 280.0, None)["engines"][0]

    with ThreadPoolExecutor() as threads:
        return {name: threads.submit(run, payload) for name, payload in payloads.items()}


@pytest.mark.parametrize("method", DRAFTS)
def test_a_drafter_changes_no_exact_answer_and_is_counted_by_class(found, method):
    exact, fast = drafters.check(found[method].result(), found["plain"].result()[0], DRAFTS[method])
    if method == "eagle":  # it was fitted to the model
        assert min(exact, fast) > 0.2
        assert abs(exact - fast) < 0.1


@pytest.mark.parametrize("method", DRAFTS)
def test_steps_were_timed_with_the_rows_of_drafts(found, method):
    costs, rows = found[method].result()[0]["step_costs"], 1 + DRAFTS[method]
    assert costs[0][0] == rows
    assert all(tokens % rows == 0 and fp16_ms > 0 and fp8_ms > 0 for tokens, fp16_ms, fp8_ms in costs)

"""Exact answers are plain vLLM's: the same weights after the load, and the same greedy tokens however steps are put together.

Each scenario is a process of its own (tests/engine_scenario.py).
"""

import shutil

import pytest
import torch
from greedy import TIE
from processes import run_json
from safetensors.torch import load_file
from test_model_kinds import loaded
from vllm_parts import MODEL

from nestedfp.kernels import ops
from nestedfp.offline.convert import convert

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
OPENINGS = ("Once upon a time", "The king said", "When the sun rose")
HEROES = ("a miller's daughter", "three brothers", "an old soldier", "the youngest prince", "a raven", "two children")
PLACES = ("by the well", "under the mountain", "in a golden castle", "near the sea", "far away from home", "at night")
PROMPTS = [f"{a} {b} {c}," for a in OPENINGS for b in HEROES for c in PLACES]  # 108
# How steps are put together: all sequences at once; 48 at a time, their prompts in chunks.
BATCHES = ({"max_num_seqs": 256}, {"max_num_seqs": 48, "max_num_batched_tokens": 64})


@pytest.mark.usefixtures("experts_group", "dtype_again")
@pytest.mark.parametrize("kind", ["plain", "converted"])
def test_loaded_weights_have_the_checkpoints_bits(tmp_path, kind):
    folder = tmp_path / "model"  # the load writes a file beside the weights
    (convert if kind == "converted" else shutil.copytree)(MODEL, folder)
    arguments = {} if kind == "converted" else {"quantization": "nestedfp"}
    stored = load_file(MODEL / "model.safetensors")
    layers = {
        name: module
        for name, module in loaded(folder, **arguments).named_modules()
        if getattr(module, "nestedfp", False)
    }
    assert len(layers) == 8 * 4
    for name, module in layers.items():
        stem, _, leaf = name.rpartition(".")
        expected = torch.cat([stored[f"{stem}.{part}.weight"] for part in FUSED.get(leaf, (leaf,))])
        n, k = module.nestedfp_shape
        found = ops.join_rows(module.weight_upper, module.weight_lower, n, k, 0, n)
        assert torch.equal(found.view(torch.int16), expected.view(torch.int16)), name


@pytest.mark.engine
@pytest.mark.slow
def test_exact_greedy_tokens_are_plain_vllms_whatever_the_batches():
    common = {"model": str(MODEL), "enforce_eager": True, "enable_prefix_caching": False}
    runs = [{"mode": "fp16", "prompts": PROMPTS, "max_tokens": 12}]

    def tokens(nested):
        engines = [{**common, **batch, **({"quantization": "nestedfp"} if nested else {})} for batch in BATCHES]
        payload = {"engines": engines, "runs": runs, "nested": nested}
        return [engine[0] for engine in run_json("engine_scenario.py", payload)["engines"]]

    plain, ours = tokens(False), tokens(True)
    differing = 0
    for number in range(len(PROMPTS)):
        # Where plain vLLM's own tokens depend on the batch, no answer is the right one: told apart by its runs alone.
        settled = len({tuple(run["tokens"][number]) for run in plain}) == 1
        for run, reference in zip(ours, plain, strict=True):
            got, expected = run["tokens"][number], reference["tokens"][number]
            first = next((i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b), None)
            differing += first is not None
            # The products are the same, their sums in another order: either of two tokens that lead by nothing is right.
            assert first is None or not settled or reference["margins"][number][first] < TIE, (PROMPTS[number], first)
    assert differing <= 0.05 * len(PROMPTS) * len(BATCHES)

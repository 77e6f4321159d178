"""A whole vLLM engine with nestedfp: the precision of every step, exactness, pins, tensor parallelism, torch.compile.

Each scenario is a process of its own (tests/engine_scenario.py).
"""

import shutil

import pytest
import torch
from greedy import assert_same_greedy_tokens
from processes import ROOT, run_json
from safetensors.torch import load_file, save_file

from nestedfp.offline.convert import convert

pytestmark = pytest.mark.engine

MODEL = ROOT / "models" / "fairytales-8m"
PROMPTS = [
    "Once upon a time there was a king who",
    "The old woman said to the fox:",
    "In the middle of the forest",
    "The king's daughter took the golden ball and",
    "When the sun had gone down, the soldier",
    "There lived a poor woodcutter with his wife",
]
EXACT = [0, 2, 5]  # of them, in a run of mixed steps
LONG = "The youngest brother went out into the wide world to seek his fortune. " * 16  # more than one cache block
SEEDED = {"prompts": [LONG], "max_tokens": 24, "params": {"seed": 7, "temperature": 1.0}}
# On one GPU there is no place for a second rank; on a CPU ranks are threads.
two_ranks = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two GPUs")


def scenario(engine, runs, *, nested=True):
    """What each run gave, by an engine with these arguments."""
    return scenarios([engine], runs, nested=nested)[0]


def scenarios(engines, runs, *, nested=True):
    """The same by several engines, one after the other."""
    common = {"model": str(MODEL), "enforce_eager": True, **({"quantization": "nestedfp"} if nested else {})}
    payload = {"engines": [{**common, **engine} for engine in engines], "runs": runs, "nested": nested}
    return run_json("engine_scenario.py", payload)["engines"]


def spoiled(folder, change):
    """Copy the shipped model with its weights changed."""
    tensors = load_file(MODEL / "model.safetensors")
    change(tensors)
    for file in MODEL.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, folder / file.name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def outliers(tmp_path_factory):
    """The shipped model with weights beyond the range."""

    def change(tensors):
        tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = 2.5  # one weight: a list
        tensors["model.layers.1.self_attn.k_proj.weight"][0, 1] = -3.0  # one part of a fused layer
        tensors["model.layers.2.mlp.down_proj.weight"][:8] *= 40.0  # too many: stays plain
        tensors["model.layers.2.mlp.down_proj.weight"].clamp_(-8, 8)

    return spoiled(tmp_path_factory.mktemp("outliers"), change)


@pytest.fixture(scope="module")
def unquantised(outliers):
    """Unquantised vLLM on the shipped model, and on the one with outliers: 48 tokens each, and 12."""
    runs = [{"prompts": PROMPTS, "max_tokens": 48}, {"prompts": PROMPTS, "max_tokens": 12}]
    return scenarios([{}, {"model": str(outliers)}], runs, nested=False)


@pytest.fixture(scope="module")
def plain(unquantised):
    """Unquantised vLLM on the shipped model."""
    return unquantised[0][0]


@pytest.fixture(scope="module")
def online():
    """One engine that converts the plain checkpoint while loading, driven through every mode."""
    tokens = {"prompts": PROMPTS, "max_tokens": 48}
    runs = [
        {"mode": "fp16", **tokens},
        {"mode": "fp8", **tokens},
        {"mode": "fp16", **tokens},
        # Steps of more than 20 tokens run FP8: the prompts, but not the decode steps of three sequences.
        {"mode": "auto", "fp8_above_tokens": 20, "prompts": [f"{i}. {LONG}" for i in range(3)]},
        {"mode": "fp8", **tokens, "extra_args": {"precision": "fp16"}},
        # The same long prompt: written by FP8 steps, read from the cache, then pinned, which must not read it.
        {"mode": "fp8", "prompts": [LONG]},
        {"mode": "fp8", "prompts": [LONG]},
        {"mode": "fp8", "prompts": [LONG], "extra_args": {"precision": "fp16"}},
        {"mode": "fp8", "prompts": [LONG], "extra_args": {"precision": "fp16"}},
        {"mode": "fp8", "prompts": [LONG], "extra_args": {"precision": "fp32"}},
        {"mode": "fp16", **tokens},
        {"mode": "fp8", **tokens, "exact": EXACT},
        SEEDED,
    ]
    return scenario({}, runs)


def test_fp16_mode_gives_the_tokens_of_unquantised_vllm(plain, online):
    assert_same_greedy_tokens(online[0], plain)


def test_modes_switch_back_and_forth_in_one_engine(online):
    assert online[1]["tokens"] != online[0]["tokens"], "FP8 rounds the weights, so some token should differ"
    assert online[2]["tokens"] == online[0]["tokens"]
    assert online[10]["tokens"] == online[0]["tokens"]


def assert_each_in_its_precision(mixed, *, exact, fast):
    """Every step of a run was mixed, and gave each request the bits of a step of its own precision."""
    assert mixed["mixed_steps"] == [[len(EXACT), len(PROMPTS) - len(EXACT)]] * len(fast["tokens"][0])
    for what in ("tokens", "logprobs"):
        assert mixed[what] == [(exact if i in EXACT else fast)[what][i] for i in range(len(PROMPTS))]


def test_in_a_mixed_step_every_request_gets_the_bits_of_a_step_of_its_own_precision(online):
    assert_each_in_its_precision(online[11], exact=online[0], fast=online[1])


@two_ranks
def test_all_ranks_run_mixed_steps_alike(ranks):
    assert_each_in_its_precision(ranks[2], exact=ranks[0], fast=ranks[1])


def test_every_token_is_accounted_for_in_its_mode(online):
    for run in (online[0], online[1]):
        mode = "fp16" if run is online[0] else "fp8"
        for counts, prompt_tokens, tokens in zip(run["precision"], run["prompt_tokens"], run["tokens"], strict=True):
            assert counts["completion"] == {"fp16": 0, "fp8": 0, mode: len(tokens)}
            assert counts["prompt"][mode] + sum(counts["prompt"]["cached"].values()) == prompt_tokens


def test_the_step_rule_runs_long_prompts_in_fp8_and_decodes_in_fp16(online):
    for counts in online[3]["precision"]:
        assert counts["prompt"]["fp16"] == 0
        assert counts["prompt"]["fp8"] > 0
        assert counts["completion"]["fp8"] <= 2  # tokens that came out of a step with a prompt in it
        assert counts["completion"]["fp16"] >= 14


def test_a_pinned_request_runs_fp16_under_an_fp8_directive(online):
    assert online[4]["tokens"] == online[0]["tokens"]
    assert all(c["completion"]["fp8"] == c["prompt"]["fp8"] == 0 for c in online[4]["precision"])


def test_a_pinned_request_reads_no_block_that_an_fp8_step_wrote(online):
    first, again, pinned, pinned_again = (online[i]["precision"][0]["prompt"] for i in (5, 6, 7, 8))
    assert first["fp8"] > 0
    assert again["cached"]["fp8"] > 0, "the prefix cache works for everybody else"
    assert pinned["cached"] == {"fp16": 0, "fp8": 0}
    assert pinned["fp8"] == 0
    assert pinned_again["cached"]["fp16"] > 0, "pinned requests share their own exact blocks"


def test_a_wrong_pin_is_refused_and_the_engine_goes_on(online):
    assert "precision must be 'exact'" in online[9]["error"]
    assert "got 'fp32'" in online[9]["error"]
    assert online[10]["tokens"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    target = tmp_path_factory.mktemp("checkpoint") / "nested"
    report = convert(MODEL, target)
    assert report.nested
    return target


@pytest.fixture(scope="module")
def ranks(converted):
    """A converted checkpoint on two ranks, which measure their steps before they serve."""
    engine = {"model": str(converted), "quantization": None, "tensor_parallel_size": 2}
    engine["additional_config"] = {"nestedfp": {"step_costs": "measure"}}
    tokens = {"prompts": PROMPTS, "max_tokens": 48}
    runs = [{"mode": mode, **tokens} for mode in ("fp16", "fp8")]
    return scenario(engine, [*runs, {"mode": "fp8", "exact": EXACT, **tokens}, {"mode": "auto", **tokens}])


@two_ranks
def test_a_converted_checkpoint_loads_without_a_word_of_its_quantisation_on_two_ranks(plain, ranks):
    fp16, fp8, *_ = ranks
    assert_same_greedy_tokens(fp16, plain)
    assert fp8["tokens"] != fp16["tokens"]
    assert all(c["completion"]["fp16"] == 0 for c in fp8["precision"])


@two_ranks
def test_measured_step_costs_reach_the_scheduler_of_every_rank(ranks):
    result = ranks[-1]
    sizes = [tokens for tokens, _, _ in result["step_costs"]]
    assert sizes == [1 << i for i in range(len(sizes))]
    assert all(fp16_ms > 0 and fp8_ms > 0 for _, fp16_ms, fp8_ms in result["step_costs"])


@two_ranks
def test_every_stage_of_a_pipeline_computes_a_step_in_its_precision(plain, online):
    tokens = {"prompts": PROMPTS, "max_tokens": 48}
    runs = [{"mode": "fp16", **tokens}, {"mode": "fp8", **tokens}]
    runs += [{"mode": "fp8", **tokens, "extra_args": {"precision": "exact"}}]
    exact, fast, pinned = scenario({"pipeline_parallel_size": 2}, runs)
    assert_same_greedy_tokens(exact, plain)
    assert_same_greedy_tokens(pinned, plain)
    assert_same_greedy_tokens(fast, online[1])
    assert fast["tokens"] != exact["tokens"]
    for run, mode in ((exact, "fp16"), (fast, "fp8"), (pinned, "fp16")):
        assert all(counts["completion"] == {"fp16": 0, "fp8": 0, mode: 48} for counts in run["precision"])


def test_torch_compile_serves_both_modes_and_mixed_steps_from_one_graph():
    tokens = {"prompts": PROMPTS, "max_tokens": 48}
    runs = [{"mode": mode, **tokens} for mode in ["fp16", "fp8", "fp16", "fp8"]]
    runs = scenario({"enforce_eager": False}, [*runs, {"mode": "fp8", "exact": EXACT, **tokens}])
    assert runs[0]["tokens"] == runs[2]["tokens"]
    assert runs[1]["tokens"] == runs[3]["tokens"]
    assert runs[0]["tokens"] != runs[1]["tokens"]
    assert_each_in_its_precision(runs[4], exact=runs[0], fast=runs[1])


def test_a_seed_gives_the_same_tokens_whether_the_prompt_is_chunked_or_not(online):
    chunked = {"max_num_batched_tokens": 64, "max_num_seqs": 8}  # the prompt takes several steps
    first, again = scenario(chunked, [SEEDED] * 2)
    assert first["tokens"] == again["tokens"] == online[12]["tokens"]


def test_weights_beyond_the_range_are_served_exactly(unquantised, outliers):
    tokens = {"prompts": PROMPTS, "max_tokens": 12}
    runs = [{"mode": "fp16", **tokens}, {"mode": "fp8", **tokens}, {"mode": "fp8", "exact": EXACT, **tokens}]
    exact, fast, mixed = scenario({"model": str(outliers)}, runs)
    assert_same_greedy_tokens(exact, unquantised[1][1])
    assert_each_in_its_precision(mixed, exact=exact, fast=fast)

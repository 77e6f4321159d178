"""LoRA adapters: exact answers are plain vLLM's with the same adapter, and what vLLM would not load whole is refused."""

import shutil
from types import SimpleNamespace

import adapters
import pytest
import torch
from greedy import assert_same_greedy_tokens
from test_engine import LONG, MODEL, PROMPTS, scenario

from nestedfp.vllm_plugin.lora.adapters import Adapters

THREE = [prompt for prompt in PROMPTS[:2] for _ in range(3)]
EXACT = [0, 2, 4]  # of them: without an adapter, with b, with a
ENGINE = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    wrong = adapters.matrices()
    wrong = {name.replace("layers.7.", "layers.8."): tensor for name, tensor in wrong.items()}
    return {
        "a": adapters.save(folder / "a"),
        "b": adapters.save(folder / "b", adapters.matrices(seed=2)),
        "wrong": adapters.save(folder / "wrong", wrong),
    }


@pytest.fixture(scope="module")
def runs(folders):
    """An engine with nested weights, and plain vLLM with the same adapters."""
    a, b = ("a", 1, folders["a"]), ("b", 2, folders["b"])
    each = {"prompts": THREE, "max_tokens": 24, "adapters": [None, a, b] * 2}
    pinned = {"extra_args": {"precision": "exact"}}
    long_a, long_b = ({"mode": "fp8", "prompts": [LONG], "adapters": [which]} for which in (a, b))
    nested = [
        {"mode": "fp16", **each},
        {"mode": "fp8", **each},
        {"mode": "fp8", "exact": EXACT, **each},
        long_a,
        long_b | pinned,
        long_a | pinned,
        long_a | pinned,
        {"mode": "fp16", "prompts": [LONG], "adapters": [("wrong", 3, folders["wrong"])]},
        {"mode": "fp16", "prompts": [LONG], "adapters": [("c", 1, folders["b"])]},
        {"mode": "fp16", **each},
    ]
    # Plain vLLM on a CPU gives rows without an adapter the last one of a batch, so each batch has one.
    plain = [{**each, "prompts": PROMPTS[:2], "adapters": [which] * 2} for which in (None, a, b)]
    plain += [{"prompts": [LONG], "adapters": [which]} for which in (a, b)]
    return scenario(ENGINE, nested), scenario(ENGINE, plain, nested=False)


@pytest.mark.engine
def test_exact_answers_are_those_of_plain_vllm_with_the_same_adapter(runs):
    nested, plain = runs
    by_prompt = {what: [run[what][i] for i in range(2) for run in plain[:3]] for what in ("tokens", "margins")}
    assert_same_greedy_tokens(nested[0], by_prompt)
    assert len({str(logprobs) for logprobs in nested[0]["logprobs"][:3]}) == 3, "every adapter changes the answer"


@pytest.mark.engine
def test_fast_answers_differ_little_and_mixed_steps_give_each_its_own(runs):
    exact, fast, mixed = runs[0][:3]
    firsts = [(e[0][0], f[0][0]) for e, f in zip(exact["logprobs"], fast["logprobs"], strict=True)]
    assert all(0 < abs(e - f) < 0.25 for e, f in firsts), firsts
    assert mixed["mixed_steps"] == [[len(EXACT), len(THREE) - len(EXACT)]] * 24
    own = {
        what: [(exact if i in EXACT else fast)[what][i] for i in range(len(THREE))] for what in ("tokens", "logprobs")
    }
    if torch.cuda.is_available():  # a GPU's order of additions depends on the number of rows
        assert [each[0] for each in mixed["logprobs"]] == [pytest.approx(each[0], abs=0.02) for each in own["logprobs"]]
    else:
        assert {what: mixed[what] for what in own} == own


@pytest.mark.engine
def test_a_pinned_request_reads_neither_another_adapters_blocks_nor_fast_ones(runs):
    nested, plain = runs
    fast, of_b, of_a, again = (run["precision"][0]["prompt"] for run in nested[3:7])
    assert fast["fp8"] > 0
    assert of_b["cached"] == of_a["cached"] == {"fp16": 0, "fp8": 0}
    assert of_b["fp8"] == of_a["fp8"] == 0
    assert again["cached"]["fp16"] > 0, "the adapter's own exact blocks"
    assert_same_greedy_tokens(nested[4], plain[4])
    assert_same_greedy_tokens(nested[6], plain[3])


@pytest.mark.engine
def test_a_refused_adapter_leaves_the_engine_as_it_was(runs):
    *_, wrong, taken, last = runs[0]
    assert "changes model.layers.8." in wrong["error"]
    assert "give each a name and a number of its own" in taken["error"]
    assert last["tokens"] == runs[0][0]["tokens"]


def taker(*, max_rank=4, model=MODEL):
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(model)),
        load_config=SimpleNamespace(load_format="auto"),
        lora_config=SimpleNamespace(max_lora_rank=max_rank),
    )
    return Adapters(config)


def request(folder, **given):
    return SimpleNamespace(
        **{"lora_name": "a", "lora_int_id": 1, "lora_path": str(folder), "load_inplace": False, **given}
    )


def take(folder, *, max_rank=4, model=MODEL, **given):
    taker(max_rank=max_rank, model=model).take(request(folder, **given))


@pytest.mark.parametrize("number", [1, 2])  # 2: unloaded and loaded again
def test_an_adapter_that_was_written_anew_is_another_one(tmp_path, number):
    adapters_taken, folder = taker(), adapters.save(tmp_path)
    adapters_taken.take(request(folder))
    adapters_taken.take(request(folder, lora_int_id=2))
    adapters.save(tmp_path, adapters.matrices(seed=2))
    with pytest.raises(ValueError, match="have changed since this engine loaded them"):
        adapters_taken.take(request(folder, lora_int_id=number))
    shutil.rmtree(tmp_path)
    adapters_taken.take(request(folder))  # the engine has it


def changed(name, tensor):
    """An adapter with one tensor replaced, or taken out."""
    found = adapters.matrices()
    del found[name]
    return found if tensor is None else found | {name: tensor}


DOWN = "base_model.model.model.layers.3.mlp.down_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({DOWN.replace("down_proj", "side_proj"): torch.zeros(4, 896)}, "mlp.side_proj, which the model does not have"),
        (changed(DOWN, torch.zeros(4, 448)), "layers.3.mlp.down_proj has"),
        (changed(DOWN, torch.zeros(2, 896)), "is not of rank 4"),
        (changed(DOWN, None), "has ['lora_B'], expected lora_A and lora_B"),
        (changed(DOWN, torch.zeros(4)), "layers.3.mlp.down_proj has"),
        ({"model.layers.0.mlp.up_proj.bias": torch.zeros(4)}, "has ['bias'], expected lora_A and lora_B"),
    ],
    ids=["no such layer", "another width", "another rank", "half", "a vector", "no matrix of an adapter"],
)
def test_an_adapter_of_another_model_is_refused(tmp_path, tensors, expected):
    with pytest.raises(
        ValueError, match=r"^\S+: .*; [a-z ]+PEFT again$|; take the model that it was made for$"
    ) as raised:
        take(adapters.save(tmp_path, tensors))
    assert expected in str(raised.value)


def test_a_rank_above_the_engines_pickled_weights_and_no_folder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rank is 8, expected 1 to 4; set max_lora_rank"):
        take(adapters.save(tmp_path / "wide", rank=8))
    pickled = tmp_path / "pickled"
    adapters.save(pickled)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(ValueError, match="found only pickled weights; save the adapter with PEFT as safetensors"):
        take(pickled)
    with pytest.raises(ValueError, match="found not both of them"):
        take(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="load_inplace=True"):
        take(adapters.save(tmp_path / "good"), load_inplace=True)


def test_names_may_begin_otherwise_and_a_head_may_be_tied(tmp_path):
    tensors = {name.replace("base_model.model.model.", ""): tensor for name, tensor in adapters.matrices().items()}
    tensors |= {"lm_head.lora_A.weight": torch.zeros(4, 256), "lm_head.lora_B.weight": torch.zeros(4096, 4)}
    tensors |= {
        "model.embed_tokens.lora_embedding_A": torch.zeros(4, 4096),
        "model.embed_tokens.lora_embedding_B": torch.zeros(256, 4),
        "model.embed_tokens.base_layer.weight": torch.zeros(4096, 256),
    }
    take(adapters.save(tmp_path / "a", tensors))
    for file in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / file, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="damaged safetensors file"):
        take(tmp_path / "a", model=tmp_path)

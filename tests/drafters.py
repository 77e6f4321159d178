"""Drafters made on the spot, and what an engine with one is held to, on a CPU and on a GPU."""

import json
import shutil
import warnings

import torch
from greedy import assert_same_greedy_tokens
from processes import ROOT
from safetensors.torch import load_file, save_file

MODEL = ROOT / "models" / "fairytales-8m"
PROMPTS = [
    "The fox ran. The fox ran. The fox",
    "one two three four five six seven " * 6,
    "Once upon a time there was a",
]
PINNED = {"precision": "fp16"}
TOKENS = 40
COMMON = {"prompts": PROMPTS, "max_tokens": TOKENS}
RUNS = [
    {"mode": "fp16", **COMMON},
    {"mode": "fp8", **COMMON},
    {"mode": "fp8", **COMMON, "extra_args": [PINNED, None, PINNED]},
    {"mode": "auto", "fp8_above_tokens": 12, **COMMON},
    {"mode": "fp16", **COMMON},
]
FAINT = 0.02  # of random weights


def check(runs, reference, drafts):
    """Hold what an engine made of ``RUNS`` to plain vLLM's FP16 answers without a drafter.

    Where tokens differ, the reference must have found both about as likely (greedy.py).

    Args:
        runs: the engine's, which reads its prefix cache.
        reference: the first of them, of plain vLLM without a drafter.
        drafts: that a step verifies of a request.

    Returns:
        The share of accepted drafts in FP16 steps and in FP8 steps.
    """
    assert not [run["error"] for run in runs if "error" in run]
    exact, fast, beside, turns, again = runs
    pinned = {key: [beside[key][i] for i in (0, 2)] for key in ("tokens", "margins")}
    for each in (exact, again):  # the latter after FP8 steps, whose blocks and rejected drafts it must not read
        assert_same_greedy_tokens(each, reference)
        assert all(counts["completion"] == {"fp16": TOKENS, "fp8": 0} for counts in each["precision"])
        assert all(counts["prompt"]["fp8"] == counts["prompt"]["cached"]["fp8"] == 0 for counts in each["precision"])
    assert_same_greedy_tokens(pinned, {key: [reference[key][i] for i in (0, 2)] for key in pinned})
    assert all(beside["precision"][i]["completion"] == {"fp16": TOKENS, "fp8": 0} for i in (0, 2))
    assert all(counts["completion"] == {"fp16": 0, "fp8": TOKENS} for counts in fast["precision"])
    for run in (beside, turns):
        for counts, prompt_tokens in zip(run["precision"], run["prompt_tokens"], strict=True):
            told = counts["prompt"]
            assert sum(counts["completion"].values()) == TOKENS
            assert told["fp16"] + told["fp8"] + sum(told["cached"].values()) == prompt_tokens
    stats = [run["stats"] for run in runs]
    assert stats[-1]["steps_mixed"] == 0
    shares = {}
    for mode, other, before, after in (("fp16", "fp8", None, stats[0]), ("fp8", "fp16", *stats[:2])):
        grown = {
            key: after[key] - (before[key] if before else 0) for key in after if key.startswith(("draft", "acc", "tok"))
        }
        drafted, accepted = grown[f"drafted_{mode}"], grown[f"accepted_{mode}"]
        assert grown[f"drafted_{other}"] == grown[f"accepted_{other}"] == grown[f"tokens_{other}"] == 0
        assert 0 <= accepted <= drafted
        assert accepted < TOKENS * len(PROMPTS), "no more than was said"
        assert grown[f"tokens_{mode}"] > drafted + drafted / drafts, (
            "the rows of a decode are its last token and its drafts"
        )
        shares[mode] = accepted / drafted
    return shares["fp16"], shares["fp8"]


def eagle_head(folder):
    """Write an EAGLE head fitted by least squares to greedy texts of the shipped model, so that it is often right.

    It predicts the model's next hidden state from its last one and the token that came of that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        starts = torch.arange(5, 4005, 40)[:, None]
        texts = model.generate(starts, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.inference_mode():
        hidden, embedded = model.model(texts).last_hidden_state, model.model.embed_tokens(texts)
    given = torch.cat((embedded[:, 1:], hidden[:, :-1]), dim=-1).flatten(0, 1)
    fitted = torch.linalg.solve(
        given.T @ given + 0.01 * torch.eye(given.shape[1]), given.T @ hidden[:, 1:].flatten(0, 1)
    )
    config = configured(architectures=["LlamaForCausalLM"])
    return write(folder, config, {**layer("layers.0.", config, config["hidden_size"]), "fc.weight": fitted.T.half()})


def eagle3_head(folder, vocabulary=1024):
    """Write a random EAGLE-3 head that knows the first tokens of the shipped model's vocabulary."""
    config = configured(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=vocabulary)
    size = config["hidden_size"]
    tensors = {**layer("midlayer.", config, 2 * size), "fc.weight": faint(size, 3 * size)}
    tensors |= {"lm_head.weight": faint(vocabulary, size), "d2t": torch.zeros(vocabulary, dtype=torch.long)}
    tensors |= ones(size, "midlayer.input_layernorm", "midlayer.hidden_norm", "norm")
    return write(folder, config, tensors)


def mtp_model(folder):
    """Write the shipped model with a random layer of its own that predicts one more token (MiMo's form of it)."""
    changes = {"model_type": "qwen2", "num_hidden_layers": 8, "num_nextn_predict_layers": 1}
    config = configured(architectures=["MiMoForCausalLM"], **changes)
    size, stem = config["hidden_size"], "model.mtp_layers.0."
    tensors = load_file(MODEL / "model.safetensors") | layer(stem, config, size)
    tensors |= {
        name.replace("weight", "bias"): torch.zeros(len(tensor)).half()
        for name, tensor in tensors.items()
        if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
    }
    norms = ("input_layernorm", "token_layernorm", "hidden_layernorm", "final_layernorm")
    tensors |= ones(size, *(stem + norm for norm in norms)) | {f"{stem}input_proj.weight": faint(size, 2 * size)}
    return write(folder, config, tensors)


def configured(**changes):
    return {**json.loads((MODEL / "config.json").read_text()), "num_hidden_layers": 1, **changes}


def faint(*shape):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])) * FAINT).half()


def ones(size, *norms):
    return {f"{norm}.weight": torch.ones(size).half() for norm in norms}


def layer(stem, config, columns):
    """Return a decoder layer whose q, k and v read so many columns, but for its first norm."""
    size, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    shapes = {"q": (heads, columns), "k": (kv_heads, columns), "v": (kv_heads, columns), "o": (size, heads)}
    shapes = {f"self_attn.{name}": shape for name, shape in shapes.items()}
    shapes |= {"mlp.gate": (inner, size), "mlp.up": (inner, size), "mlp.down": (size, inner)}
    found = {f"{stem}{name}_proj.weight": faint(*shape) for name, shape in shapes.items()}
    return found | ones(size, f"{stem}post_attention_layernorm")


def write(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / file, folder)
    return str(folder)

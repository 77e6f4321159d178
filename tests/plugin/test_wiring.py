"""A half-wired engine refuses to start, and so does what nestedfp cannot serve, each with what to set instead."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import ROOT, run_json
from test_model_kinds import COMMON, DEEPSEEK, QWEN3_MOE

from nestedfp.vllm_plugin import drafts

pytestmark = pytest.mark.slow

EAGLE = {"method": "eagle", "num_speculative_tokens": 2}
MODEL = str(ROOT / "models" / "fairytales-8m")


DUMMY = {"skip_tokenizer_init": True, "load_format": "dummy"}
TAKEN = {  # MODELS: the folder of the models that the tests make
    "good": {},
    "ngram": {"args": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}}},
    "eagle": {"args": {"speculative_config": {**EAGLE, "model": "MODELS/eagle"}}},
    "lora": {"args": {"enable_lora": True}},
    "hopper": {"capability": [9, 0]},
    "hopper, PDL off": {
        "args": {"compilation_config": {"inductor_compile_config": {"triton.enable_pdl": False}}},
        "capability": [9, 0],
    },
    "ada": {"capability": [8, 9]},
    "served": {"serves": True},
    "served, TTFT": {"args": {"additional_config": {"nestedfp": {"slo": {"ttft_ms": 500}}}}, "serves": True},
    "served without": {"args": {"additional_config": {"nestedfp": {"slo": None}}}, "serves": True},
}
UNVERIFIED = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
SLO = "slo: expected milliseconds above 0"
REFUSED = [  # arguments, what is said, and who is asked
    (
        {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"},
        "scheduler_cls='nestedfp.vllm_plugin.scheduling.scheduler.make_scheduler'",
    ),
    ({"worker_cls": "somebody.elses.Worker"}, "worker_cls='nestedfp.vllm_plugin.ranks.worker.NestedFPWorker'"),
    ({"dtype": "bfloat16"}, "set dtype='float16'"),
    (
        {"model": "MODELS/experts", **DUMMY, "enable_lora": True},
        "no LoRA adapters on a model with nested experts; set enable_lora=False",
    ),
    (
        {"speculative_config": {"model": MODEL, "num_speculative_tokens": 2}},
        "no drafts of 'draft_model' on a CPU; set speculative_config's method to one of eagle, eagle3, mtp, ",
    ),
    (
        {"speculative_config": {**EAGLE, "model": "MODELS/eagle", **UNVERIFIED}},
        "accepts drafts that the model has not verified, and no answer would be exact; remove it",
    ),
    (
        {"speculative_config": {**EAGLE, "model": "MODELS/other_tokens"}},
        "drafts tokens of a vocabulary of 4097, and the model has one of 4096; set speculative_config",
    ),
    ({"model": "MODELS/sparse", **DUMMY}, "no sparse latent attention (index_topk in config.json)"),
    ({"model": "MODELS/gemma2", **DUMMY}, "its activations leave FP16's range (65504)"),
    (
        {"model": "MODELS/experts", **DUMMY, "data_parallel_size": 2},
        "set data_parallel_size=1 or the option experts to 'plain'",
    ),
    ({"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}}, "remove kv_transfer_config"),
    ({"kv_offloading_size": 1.0}, "remove kv_transfer_config (kv_offloading_size makes one too)"),
    ({"ec_transfer_config": {"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}}, "remove ec_transfer_config"),
    ({"kv_cache_dtype": "nvfp4"}, "leave kv_cache_dtype at 'auto'"),
    ({"additional_config": {"nestedfp": {"quantise": True}}}, "keys out of"),
    ({"additional_config": {"nestedfp": {"quantize_activations": "yes"}}}, "must be of type bool"),
    (
        {"additional_config": {"nestedfp": {"step_costs": "fp8"}}},
        "must be one of ('auto', 'measure', 'off'); got 'fp8'",
    ),
    ({"additional_config": {"nestedfp": {"slo": {"tpot_ms": 0}}}}, SLO),
    ({"additional_config": {"nestedfp": {"slo": {"itl_ms": 5}}}}, SLO),
    ({"additional_config": {"nestedfp": {"slo": 200}}}, SLO),
    (
        {"additional_config": {"nestedfp": {"slo": None}}, "quantization": None},
        "set --quantization nestedfp, or remove the options",
    ),
    ({"additional_config": {"nestedfp": {"graph_tokens": -1}}}, "must be of type int from 0 on; got -1"),
    ({"model": "MODELS/truncated"}, "model.safetensors: damaged safetensors file"),
    (
        {"additional_config": {"slo": {"ttft_ms": 500}}},
        "additional_config: ['slo']: expected under the key 'nestedfp'",
        {"serves": True},
    ),
    (
        {"additional_config": {"nestedfp": {"max_num_seqs": 4}}},
        "unknown ['max_num_seqs'], expected keys out of",
        {"serves": True},
    ),
    ({}, "this GPU has 7.5", {"capability": [7, 5]}),
    ({}, "with nvcc of CUDA 12.8 or newer there, install it again", {"capability": [9, 0], "built": False}),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    shipped = json.loads((Path(MODEL) / "config.json").read_text())
    configs = {
        "experts": QWEN3_MOE,
        "sparse": {**DEEPSEEK, "index_topk": 64},
        "gemma2": {**COMMON, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 32},
        "eagle": {**shipped, "num_hidden_layers": 1},
        "other_tokens": {**shipped, "vocab_size": 4097},
    }
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    shutil.copytree(MODEL, folder / "truncated")
    with (folder / "truncated" / "model.safetensors").open("r+b") as file:
        file.truncate(10_000_000)
    cases = {name: {"args": {}, **case} for name, case in TAKEN.items()}
    cases |= {str(i): {"args": args, **dict(*asked)} for i, (args, _, *asked) in enumerate(REFUSED)}
    for case in cases.values():
        case["args"] = json.loads(json.dumps({"model": MODEL, **case["args"]}).replace("MODELS", str(folder)))
    return run_json("wiring_scenario.py", cases)


@pytest.mark.parametrize("what", ["ngram", "eagle", "lora"])
def test_drafts_and_adapters_are_taken_on_a_cpu(outcomes, what):
    assert isinstance(outcomes[what], dict), outcomes[what]


def test_a_gpu_takes_no_ngram_drafts():
    config = SimpleNamespace(speculative_config=SimpleNamespace(method="ngram"))
    assert "no drafts of 'ngram' on a GPU; set speculative_config's method to one of eagle, eagle3, mtp, or" in (
        drafts.obstacle(config, is_cpu=False)
    )


def test_scheduler_and_worker_are_filled_in(outcomes):
    assert outcomes["good"]["scheduler_cls"] == "nestedfp.vllm_plugin.scheduling.scheduler.make_scheduler"
    assert outcomes["good"]["worker_cls"] == "nestedfp.vllm_plugin.ranks.worker.NestedFPWorker"
    assert len(outcomes["good"]["options"]["checkpoint"]) == 16


def test_an_api_server_keeps_the_usual_slo_unless_it_is_told_another(outcomes):
    assert outcomes["served"]["options"]["slo"] == {"ttft_ms": 200.0, "tpot_ms": 33.3}
    assert outcomes["served, TTFT"]["options"]["slo"] == {"ttft_ms": 500}
    assert outcomes["served without"]["options"]["slo"] is None
    assert "slo" not in outcomes["good"]["options"]  # offline nobody waits


def test_on_hopper_kernels_may_start_early_unless_the_user_says_no(outcomes):
    assert outcomes["good"]["pdl"] is None  # a CPU
    assert outcomes["hopper"]["pdl"] is True
    assert outcomes["hopper, PDL off"]["pdl"] is False
    assert outcomes["ada"]["pdl"] is None  # it cannot


@pytest.mark.parametrize("refused", range(len(REFUSED)), ids=[said for _, said, *_ in REFUSED])
def test_refused_with_what_to_set(outcomes, refused):
    outcome = outcomes[str(refused)]
    assert isinstance(outcome, str), f"accepted: {outcome}"
    assert REFUSED[refused][1] in outcome

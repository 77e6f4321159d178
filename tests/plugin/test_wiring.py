"""A half-wired engine refuses to start, and so does what nestedfp cannot serve, each with what to set instead."""

import json
from types import SimpleNamespace

import pytest
from processes import ROOT, run_json
from test_model_kinds import COMMON, DEEPSEEK, QWEN3_MOE

from nestedfp.vllm_plugin import drafts

pytestmark = pytest.mark.slow

EAGLE = {"method": "eagle", "num_speculative_tokens": 2}
MODEL = str(ROOT / "models" / "fairytales-8m")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    truncated = tmp_path_factory.mktemp("truncated")
    for file in (ROOT / "models" / "fairytales-8m").iterdir():
        data = file.read_bytes()
        (truncated / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    gemma = {**COMMON, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 32}
    families = {"experts": QWEN3_MOE, "sparse": {**DEEPSEEK, "index_topk": 64}, "gemma2": gemma}
    shipped = json.loads((ROOT / "models" / "fairytales-8m" / "config.json").read_text())
    families |= {"eagle": {**shipped, "num_hidden_layers": 1}, "eagle, other tokens": {**shipped, "vocab_size": 4097}}
    for name, config in families.items():
        families[name] = tmp_path_factory.mktemp(name)
        (families[name] / "config.json").write_text(json.dumps(config))
        families[name] = str(families[name])
    cases = {
        "good": {"args": {}},
        "scheduler": {"args": {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}},
        "worker": {"args": {"worker_cls": "somebody.elses.Worker"}},
        "bfloat16": {"args": {"dtype": "bfloat16"}},
        "ngram": {
            "args": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}}
        },
        "lora": {"args": {"enable_lora": True}},
        "lora, experts": {
            "args": {
                "model": families["experts"],
                "skip_tokenizer_init": True,
                "load_format": "dummy",
                "enable_lora": True,
            }
        },
        "draft model": {"args": {"speculative_config": {"model": MODEL, "num_speculative_tokens": 2}}},
        "eagle": {"args": {"speculative_config": {**EAGLE, "model": families["eagle"]}}},
        "eagle, unverified": {
            "args": {
                "speculative_config": {
                    **EAGLE,
                    "model": families["eagle"],
                    "rejection_sample_method": "synthetic",
                    "synthetic_acceptance_length": 2.0,
                }
            }
        },
        "eagle, other tokens": {"args": {"speculative_config": {**EAGLE, "model": families["eagle, other tokens"]}}},
        "sparse": {"args": {"model": families["sparse"], "skip_tokenizer_init": True, "load_format": "dummy"}},
        "gemma2": {"args": {"model": families["gemma2"], "skip_tokenizer_init": True, "load_format": "dummy"}},
        "experts, DP": {
            "args": {
                "model": families["experts"],
                "skip_tokenizer_init": True,
                "load_format": "dummy",
                "data_parallel_size": 2,
            }
        },
        "kv connector": {"args": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}}},
        "kv offloading": {"args": {"kv_offloading_size": 1.0}},
        "ec connector": {"args": {"ec_transfer_config": {"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}}},
        "nvfp4 kv": {"args": {"kv_cache_dtype": "nvfp4"}},
        "option": {"args": {"additional_config": {"nestedfp": {"quantise": True}}}},
        "option type": {"args": {"additional_config": {"nestedfp": {"quantize_activations": "yes"}}}},
        "option choice": {"args": {"additional_config": {"nestedfp": {"step_costs": "fp8"}}}},
        "hopper": {"args": {}, "capability": [9, 0]},
        "hopper, PDL off": {
            "args": {"compilation_config": {"inductor_compile_config": {"triton.enable_pdl": False}}},
            "capability": [9, 0],
        },
        "hopper, no nvcc": {"args": {}, "capability": [9, 0], "built": False},
        "turing": {"args": {}, "capability": [7, 5]},
        "ada": {"args": {}, "capability": [8, 9]},
        "served": {"args": {}, "serves": True},
        "served, TTFT": {"args": {"additional_config": {"nestedfp": {"slo": {"ttft_ms": 500}}}}, "serves": True},
        "served without": {"args": {"additional_config": {"nestedfp": {"slo": None}}}, "serves": True},
        "slo of nothing": {"args": {"additional_config": {"nestedfp": {"slo": {"tpot_ms": 0}}}}},
        "slo unknown": {"args": {"additional_config": {"nestedfp": {"slo": {"itl_ms": 5}}}}},
        "slo is one number": {"args": {"additional_config": {"nestedfp": {"slo": 200}}}},
        "slo beside": {"args": {"additional_config": {"slo": {"ttft_ms": 500}}}, "serves": True},
        "slo unquantised": {"args": {"additional_config": {"nestedfp": {"slo": None}}, "quantization": None}},
        "negative size": {"args": {"additional_config": {"nestedfp": {"graph_tokens": -1}}}},
        "vLLM's own": {"args": {"additional_config": {"nestedfp": {"max_num_seqs": 4}}}, "serves": True},
        "truncated": {"args": {"model": str(truncated)}},
    }
    return run_json("wiring_scenario.py", {k: {**v, "args": {"model": MODEL, **v["args"]}} for k, v in cases.items()})


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


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("scheduler", "scheduler_cls='nestedfp.vllm_plugin.scheduling.scheduler.make_scheduler'"),
        ("worker", "worker_cls='nestedfp.vllm_plugin.ranks.worker.NestedFPWorker'"),
        ("bfloat16", "set dtype='float16'"),
        ("lora, experts", "LoRA adapters on dense models only, and this one has experts; set enable_lora=False"),
        (
            "draft model",
            "no drafts of 'draft_model' on a CPU; set speculative_config's method to one of eagle, eagle3, mtp, ",
        ),
        (
            "eagle, unverified",
            "accepts drafts that the model has not verified, and no answer would be exact; remove it",
        ),
        (
            "eagle, other tokens",
            "drafts tokens of a vocabulary of 4097, and the model has one of 4096; set speculative_config",
        ),
        ("sparse", "no sparse latent attention (index_topk in config.json)"),
        ("gemma2", "its activations leave FP16's range (65504)"),
        ("experts, DP", "set data_parallel_size=1 or the option experts to 'plain'"),
        ("kv connector", "remove kv_transfer_config"),
        ("kv offloading", "remove kv_transfer_config (kv_offloading_size makes one too)"),
        ("ec connector", "remove ec_transfer_config"),
        ("nvfp4 kv", "leave kv_cache_dtype at 'auto'"),
        ("option", "keys out of"),
        ("option type", "must be of type bool"),
        ("option choice", "must be one of ('auto', 'measure', 'off'); got 'fp8'"),
        ("slo of nothing", "slo: expected milliseconds above 0"),
        ("slo unknown", "slo: expected milliseconds above 0"),
        ("slo is one number", "slo: expected milliseconds above 0"),
        ("slo beside", "additional_config: ['slo']: expected under the key 'nestedfp'"),
        ("slo unquantised", "set --quantization nestedfp, or remove the options"),
        ("negative size", "must be of type int from 0 on; got -1"),
        ("vLLM's own", "unknown ['max_num_seqs'], expected keys out of"),
        ("turing", "this GPU has 7.5"),
        ("hopper, no nvcc", "with nvcc of CUDA 12.8 or newer there, install it again"),
        ("truncated", "model.safetensors: damaged safetensors file"),
    ],
)
def test_refused_with_what_to_set(outcomes, case, expected):
    assert isinstance(outcomes[case], str), f"accepted: {outcomes[case]}"
    assert expected in outcomes[case]

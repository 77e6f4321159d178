"""An engine whose KV cache is FP8: no answer of it is called exact, and none is promised."""

import pytest
import torch
from processes import run_json
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm_parts import MODEL, Engine, FrontEnd, SamplingParams, VLLMValidationError, engine_config, engine_request

from nestedfp.answers import answer_of
from nestedfp.vllm_plugin import kv_cache
from nestedfp.vllm_plugin.frontend import check_pin, collected, total, usage_of
from nestedfp.vllm_plugin.options import rounds_kv
from nestedfp.vllm_plugin.scheduling.pin import AskedPrecision
from nestedfp.vllm_plugin.serving.endpoints import Endpoints

CAPABILITY = torch.backends.cpu.get_cpu_capability()


@pytest.fixture
def wide_cpu(monkeypatch):
    """A CPU on which vLLM's attention reads FP8."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


def answered(engine, mode):
    front = FrontEnd()
    engine.direct(mode)
    request = engine_request("a", 20)
    with collected() as counts:
        front.add(request)
    engine.add(request)
    while engine.scheduler.has_unfinished_requests():
        front.receive(engine.step())
    return usage_of(total(counts.values()))


@pytest.mark.usefixtures("wide_cpu")
@pytest.mark.parametrize(
    ("dtype", "mode", "told"),
    [
        ("fp8", "fp16", "weights_exact"),
        ("fp8_e5m2", "fp16", "weights_exact"),
        ("fp8", "fp8", "fast"),
        ("auto", "fp16", "exact"),
    ],
)
def test_usage_and_statistics_say_what_the_kv_cache_is(dtype, mode, told):
    engine = Engine(kv_cache_dtype=dtype)
    usage = answered(engine, mode)
    assert answer_of(usage) == told
    assert usage.get("kv_cache") == (None if dtype == "auto" else "fp8")
    assert engine.scheduler.nestedfp_stats()["kv_cache"] == ("fp16" if dtype == "auto" else "fp8")


@pytest.mark.usefixtures("wide_cpu")
def test_an_exact_answer_is_not_promised():
    assert rounds_kv(engine_config(kv_cache_dtype="fp8"))
    assert not rounds_kv(engine_config())
    pinned = SamplingParams(extra_args={"precision": "exact"})
    assert check_pin(pinned, is_inexact=False)
    with pytest.raises(VLLMValidationError, match="no answer can be exact: this engine's KV cache is FP8"):
        check_pin(pinned, is_inexact=True)
    assert not check_pin(SamplingParams(extra_args={"precision": "fast"}), is_inexact=True)


def test_the_header_of_a_plain_server_says_it():
    endpoints = Endpoints()
    assert endpoints.decided(None) == "exact"
    endpoints._rounds_kv = True
    assert [endpoints.decided(asked) for asked in (None, AskedPrecision.AUTO, AskedPrecision.FAST)] == [
        "weights_exact",
        "weights_exact",
        "fast",
    ]


def test_a_cpu_that_cannot_and_another_type_are_refused_with_what_to_set(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    for dtype, said in (
        ("fp8", "needs AVX-512 for it, and this one has AVX2"),
        ("nvfp4", "nestedfp serves KV caches of"),
    ):
        with pytest.raises(ValueError, match=said):
            engine_config(kv_cache_dtype=dtype)


def test_on_a_gpu_triton_reads_it_for_flashattention_needs_bf16(wide_cpu, monkeypatch):
    config = engine_config(kv_cache_dtype="fp8")
    config.attention_config.backend = None
    kv_cache.complete(config, is_cpu=False)
    assert config.attention_config.backend is AttentionBackendEnum.TRITON_ATTN
    config.attention_config.backend = AttentionBackendEnum.FLASHINFER  # the user's choice stands
    kv_cache.complete(config, is_cpu=False)
    assert config.attention_config.backend is AttentionBackendEnum.FLASHINFER
    config.attention_config.backend = AttentionBackendEnum.FLASH_ATTN
    with pytest.raises(ValueError, match="for models in BF16 alone"):
        kv_cache.complete(config, is_cpu=False)
    monkeypatch.setattr(type(config.model_config), "use_mla", True)
    with pytest.raises(ValueError, match="no FP8 cache of latent attention on a GPU"):
        kv_cache.complete(config, is_cpu=False)
    plain = engine_config()
    kv_cache.complete(plain, is_cpu=False)  # any attention reads an FP16 cache
    assert plain.attention_config.backend is engine_config().attention_config.backend


@pytest.mark.engine
@pytest.mark.skipif(
    "AVX512" not in CAPABILITY, reason=f"vLLM's attention needs AVX-512 for it, this CPU has {CAPABILITY}"
)
def test_an_engine_serves_both_precisions_over_it():
    payload = {
        "engines": [{"model": str(MODEL), "quantization": "nestedfp", "kv_cache_dtype": "fp8", "enforce_eager": True}],
        "runs": [{"mode": mode, "prompts": ["Once upon a time"]} for mode in ("fp16", "fp8")],
    }
    exact, fast = run_json("engine_scenario.py", payload)["engines"][0]
    assert [answer_of(run["precision"][0]) for run in (exact, fast)] == ["weights_exact", "fast"]

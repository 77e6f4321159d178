"""Which GPU runs what, by compute capability, and what is measured where."""

from types import SimpleNamespace

import pytest

from nestedfp.kernels.gpu_kernels import is_portable, multiplies_fp8, require
from nestedfp.vllm_plugin.options import PluginOptions


def test_a_gpu_that_is_too_old_for_the_portable_kernels_is_refused():
    with pytest.raises(ValueError, match=r"8\.0 or newer, this GPU has 7\.5; serve plain .*engine.quantization: none"):
        require((7, 5))


def test_a_hopper_stands_in_for_other_gpus_when_the_environment_says_so(monkeypatch):
    assert not is_portable((9, 0))
    assert is_portable((8, 9))
    monkeypatch.setenv("NESTEDFP_GPU_KERNELS", "portable")
    assert is_portable((9, 0))
    monkeypatch.setenv("NESTEDFP_GPU_KERNELS", "fast")
    with pytest.raises(ValueError, match="must be auto or portable, got 'fast'"):
        is_portable((9, 0))


@pytest.mark.parametrize(
    ("given", "is_cpu", "measures"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"step_costs": "measure"}, True, True),
        ({"step_costs": "off"}, False, False),
    ],
)
def test_steps_are_timed_on_a_gpu_unless_told_otherwise(given, is_cpu, measures):
    assert PluginOptions(**given).measures_steps(is_cpu) is measures


@pytest.mark.parametrize(
    ("capability", "quantized"),
    [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True), ((10, 0), False), ((12, 0), True)],
)
def test_activations_are_quantised_where_a_product_of_fp8_by_fp8_is_an_instruction(capability, quantized):
    assert multiplies_fp8(capability) is quantized


@pytest.mark.parametrize(
    ("experts", "is_cpu", "engine", "nests"),
    [
        ("auto", False, {}, True),
        ("auto", False, {"lora_config": object()}, False),
        ("auto", False, {"data_parallel_size": 2}, False),
        ("auto", False, {"enable_eplb": True}, False),
        ("auto", True, {"lora_config": object()}, True),  # and is refused there
        ("nested", False, {"lora_config": object()}, True),
        ("plain", False, {}, False),
    ],
)
def test_experts_are_nested_where_nothing_is_asked_that_nested_ones_lack(experts, is_cpu, engine, nests):
    config = SimpleNamespace(
        lora_config=engine.get("lora_config"),
        parallel_config=SimpleNamespace(**{"data_parallel_size": 1, "enable_eplb": False, **engine}),
    )
    assert PluginOptions(experts=experts).nests_experts(config, is_cpu=is_cpu) is nests

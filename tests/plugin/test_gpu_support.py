"""Which GPU runs what: the decision by compute capability and options."""

import pytest

from nestedfp.kernels.gpu_kernels import multiplies_fp8
from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.ranks.gpu_support import runs_portable

REFUSE, PORTABLE = (PluginOptions(unsupported_gpu=what) for what in ("refuse", "portable"))


@pytest.mark.parametrize("options", [REFUSE, PORTABLE])
@pytest.mark.parametrize("capability", [None, (9, 0)])
def test_a_cpu_and_hopper_run_both_precisions_whatever_the_option(capability, options):
    assert runs_portable(capability, options) is False


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_another_gpu_is_refused_with_what_to_set_unless_that_is_said(capability):
    found = f"{capability[0]}.{capability[1]}"
    with pytest.raises(ValueError, match=rf"this GPU has {found}\. To serve both precisions") as caught:
        runs_portable(capability, REFUSE)
    assert "unsupported_gpu: portable" in str(caught.value)
    assert "engine.quantization: none" in str(caught.value)
    assert runs_portable(capability, PORTABLE) is True


@pytest.mark.parametrize("options", [REFUSE, PORTABLE])
def test_a_gpu_that_is_too_old_for_the_portable_kernels_is_refused(options):
    with pytest.raises(ValueError, match=r"this GPU has 7\.5\. The portable kernels need 8\.0 or newer") as caught:
        runs_portable((7, 5), options)
    assert "engine.quantization: none" in str(caught.value)


def test_a_hopper_stands_in_for_other_gpus_when_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("NESTEDFP_GPU_KERNELS", "portable")
    assert runs_portable((9, 0), REFUSE) is True
    assert runs_portable(None, PORTABLE) is False
    monkeypatch.setenv("NESTEDFP_GPU_KERNELS", "fast")
    with pytest.raises(ValueError, match="must be auto or portable, got 'fast'"):
        runs_portable((9, 0), PORTABLE)


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

"""Which GPU runs what: the decision by compute capability and options."""

import pytest

from nestedfp.vllm_plugin.options import PluginOptions
from nestedfp.vllm_plugin.ranks.gpu_support import LinearPath, support

REFUSE, FP16 = PluginOptions(), PluginOptions(unsupported_gpu="fp16")


@pytest.mark.parametrize("options", [REFUSE, FP16])
@pytest.mark.parametrize("capability", [None, (9, 0)])
def test_a_cpu_and_hopper_run_both_precisions_whatever_the_option(capability, options):
    assert support(capability, options) is LinearPath.KERNELS


@pytest.mark.parametrize(
    ("capability", "why"),
    [
        ((7, 5), r"has 7\.5 and has no FP8 tensor cores"),
        ((8, 0), r"has 8\.0 and has no FP8 tensor cores"),
        ((8, 9), r"has 8\.9 and has FP8 tensor cores, but no kernels"),
        ((10, 0), r"has 10\.0 and has FP8 tensor cores, but no kernels"),
    ],
)
def test_another_gpu_is_refused_with_what_to_set_unless_fp16_alone_is_wanted(capability, why):
    with pytest.raises(ValueError, match=why) as caught:
        support(capability, REFUSE)
    assert "unsupported_gpu: fp16" in str(caught.value)
    assert support(capability, FP16) is LinearPath.PLAIN_FP16


@pytest.mark.parametrize("capability", [None, (8, 9), (9, 0)])
def test_fp16_only_can_be_asked_for_anywhere(capability):
    assert support(capability, PluginOptions(fp16_only=True)) is LinearPath.PLAIN_FP16


@pytest.mark.parametrize(
    ("given", "is_cpu", "measures"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"step_costs": "measure"}, True, True),
        ({"step_costs": "off"}, False, False),
        ({"fp16_only": True}, False, False),  # one precision: nothing to compare
    ],
)
def test_steps_are_timed_on_a_gpu_unless_told_otherwise(given, is_cpu, measures):
    assert PluginOptions(**given).measures_steps(is_cpu) is measures

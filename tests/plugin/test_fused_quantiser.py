"""The pass that fuses the quantiser with what precedes a linear layer: what it fuses and leaves alone, and that no bit changes.

Run: ``pytest -q tests/plugin/test_fused_quantiser.py``
"""

import gc
import pickle
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_model_kinds import loaded
from vllm_parts import MODEL, engine_config

from nestedfp.kernels import ops
from nestedfp.modes import Mode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pass_backend import PassBackend
    from vllm import ir
    from vllm.ir.op import enable_torch_wrap

    from nestedfp.vllm_plugin.weights import fused_quantiser
    from nestedfp.vllm_plugin.weights.fused_quantiser import FuseQuantiser

pytestmark = pytest.mark.usefixtures("experts_group", "fp16_again")

QUANTIZES = {"additional_config": {"nestedfp": {"quantize_activations": True}}}
LAYERS = 8  # of the shipped model


@pytest.fixture(scope="module")
def model():
    return loaded(MODEL, **QUANTIZES)


def block_stack(model):
    """The shipped model's transformer blocks, all linear layers, norms and activations, with a sum in place of the attention."""

    def run(x):
        residual = None
        for layer in model.model.layers:
            if residual is None:
                x, residual = layer.input_layernorm(x), x
            else:
                x, residual = layer.input_layernorm(x, residual)
            qkv, _ = layer.self_attn.qkv_proj(x)
            x, _ = layer.self_attn.o_proj(qkv[:, :256] + qkv[:, 256:])
            x, residual = layer.post_attention_layernorm(x, residual)
            x = layer.mlp(x)
        x, _ = model.model.norm(x, residual)
        return x

    return run


def compiled(run, *passes):
    """``run`` as one graph for any number of tokens, and the backend that compiles it."""
    gc.collect()  # what vLLM has dropped has destructors that fail while a graph is traced
    backend = PassBackend(engine_config(**QUANTIZES), *passes)
    torch._dynamo.reset()
    step = torch.compile(run, backend=backend, fullgraph=True)

    def call(tokens, width=256):
        x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(tokens)).half()
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad(), enable_torch_wrap(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, while it compiles
            return step(x)

    return call, backend


def counts(backend):
    """Norms, norms with a sum, activations, linear layers that read a carrier, and others."""
    return [backend.count(name) for name in ("rms_norm", "add_rms_norm", "silu_and_mul", "linear_carried", "linear")]


def assert_same_bits(run):
    """Compile with and without the pass, run both modes in turn, and compare; return the backend of the former."""
    fused, backend = compiled(run, FuseQuantiser())
    plain, others = compiled(run)
    outputs = {}
    for tokens in (5, 70, 33):
        for mode in (Mode.FP16, Mode.FP8, Mode.FP16, Mode.FP8):
            ops.set_mode(mode)
            outputs[mode] = fused(tokens)
            assert torch.equal(outputs[mode], plain(tokens)), (mode, tokens)
        assert not torch.equal(outputs[Mode.FP16], outputs[Mode.FP8])
    assert len(backend.graphs) == len(others.graphs) == 1
    assert others.count("linear") == backend.count("linear") + backend.count("linear_carried")
    return backend


def test_all_but_the_layer_after_the_attention_are_fused_and_no_bit_changes_in_either_mode(model):
    assert counts(assert_same_bits(block_stack(model))) == [1, 2 * LAYERS - 1, LAYERS, 3 * LAYERS, LAYERS]


def test_layers_with_an_outlier_list_read_what_was_not_quantised(tmp_path):
    for file in MODEL.glob("*.json"):
        shutil.copy(file, tmp_path)
    tensors = load_file(MODEL / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = 2.5
    tensors["model.layers.1.self_attn.k_proj.weight"][0, 1] = -3.0  # one part of a fused layer
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    backend = assert_same_bits(block_stack(loaded(tmp_path, **QUANTIZES)))
    assert counts(backend) == [1, 2 * LAYERS - 2, LAYERS - 1, 3 * LAYERS - 2, LAYERS + 2]


def test_what_another_operator_reads_too_is_not_fused(model):
    first, second = model.model.layers[:2]

    def run(x):
        normed, residual = first.input_layernorm(x * 2, x + 1)
        one, _ = first.self_attn.qkv_proj(normed)
        two, _ = second.self_attn.qkv_proj(normed)
        alone, _ = first.self_attn.qkv_proj(first.input_layernorm(residual))
        gated, _ = first.mlp.gate_up_proj(first.post_attention_layernorm(x))
        activated = first.mlp.act_fn(gated)
        down, _ = first.mlp.down_proj(activated)
        return torch.cat([one, two, alone, down, activated], dim=1)

    assert counts(assert_same_bits(run)) == [2, 0, 0, 2, 3]


def test_norms_that_our_kernels_do_not_compute_are_not_fused(model):
    layer = model.model.layers[0]
    weight = torch.randn(256)

    def run(x):
        part, _ = layer.self_attn.qkv_proj(ir.ops.rms_norm(x, weight.half(), 1e-6, 128))
        wide, _ = layer.self_attn.qkv_proj(ir.ops.rms_norm(x, weight, 1e-6))
        bare, _ = layer.self_attn.qkv_proj(ir.ops.rms_norm(x, None, 1e-6))
        ours, _ = layer.self_attn.qkv_proj(ir.ops.rms_norm(x, weight.half(), 1e-3))
        return part + wide + bare + ours

    assert counts(assert_same_bits(run)) == [1, 0, 0, 1, 3]


def test_layers_that_keep_their_activations_in_fp8_mode_are_not_fused():
    fused, backend = compiled(block_stack(loaded(MODEL)), FuseQuantiser())
    fused(5)
    assert counts(backend) == [0, 0, 0, 0, 4 * LAYERS]


def test_where_nothing_is_said_a_hopper_fuses():
    from vllm.config.compilation import CompilationMode
    from vllm.platforms import current_platform

    from nestedfp.vllm_plugin import wiring

    config = engine_config()
    assert not wiring.wants_fusion(config), "a CPU runs no passes"
    config.compilation_config.mode, config.compilation_config.backend = CompilationMode.VLLM_COMPILE, "inductor"
    assert wiring.wants_fusion(config)
    config.additional_config["nestedfp"] = {"fused_quantiser": "never"}
    assert not wiring.wants_fusion(config)
    config.additional_config["nestedfp"] = {}
    config.compilation_config.inductor_compile_config[current_platform.pass_key] = "theirs"
    assert not wiring.wants_fusion(config), "the place is taken"


def test_the_pass_travels_with_the_configuration_and_changes_the_key_of_compiled_graphs():
    without, config = engine_config(), engine_config()
    assert without.compute_hash() == config.compute_hash()
    assert not fused_quantiser.is_installed(config)
    fused_quantiser.install(config)
    assert fused_quantiser.is_installed(config)
    assert without.compute_hash() != config.compute_hash()
    arrived = pickle.loads(pickle.dumps(config)).compilation_config.inductor_compile_config[
        "post_grad_custom_post_pass"
    ]
    assert isinstance(arrived, FuseQuantiser)
    assert arrived.uuid() == FuseQuantiser().uuid()

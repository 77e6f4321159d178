"""The kernels of nested experts, without a GPU: the planes that they read, and that they compile for the one that they are for.

What it computes is compared on a GPU (test_gpu_moe.py).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gemm_library import CSRC
from interleaving import interleaved
from triton import compile as compile_triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nestedfp.format import split
from nestedfp.kernels.experts import expert_tiles, experts_grouped, experts_listed, experts_silu, experts_triton

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # Triton's own advice


def words():
    """All weights within the range."""
    bits = torch.arange(1 << 16, dtype=torch.int32)
    return bits[(bits & 0x7FFF) <= 0x3F00].to(torch.int16).view(torch.float16)


def test_the_instructions_of_the_decoder_join_every_weight_beside_any_other():
    upper, lower = split(words())
    lane = upper.long() << 8 | experts_triton.recode(lower).long()
    expected = words().view(torch.int16).long() & 0xFFFF
    for seed in range(8):
        other = torch.randperm(len(lane), generator=torch.Generator().manual_seed(seed))
        a = lane | lane[other] << 16
        c = (~a & 0x7F007F00) | 0x80018002  # lop3 0xAE
        c = torch.where(c >= 1 << 31, c - (1 << 32), c) >> 1  # shr.s32
        assert torch.equal((a + c) & 0xFFFFFFFF, expected | expected[other] << 16)


def compiled(kernel, constants, x_type="*i32"):
    pointers = dict.fromkeys(("sorted_ids_ptr", "expert_ids_ptr", "padded_ptr"), "*i32")
    pointers |= {"a_ptr": "*fp16", "c_ptr": "*fp16", "upper_ptr": "*u8", "lower_ptr": "*u8", "weights_ptr": "*fp32"}
    pointers |= {"factors_ptr": "*fp32", "scales_ptr": "*fp32", "ids_ptr": "*i32", "x_ptr": x_type}
    pointers |= {"codes_ptr": "*fp8e4nv", "deltas_ptr": "*fp32"}
    pointers |= dict.fromkeys(("map_ptr", "begins_ptr", "rows_ptr", "firsts_ptr", "columns_ptr"), "*i32")
    names = kernel.arg_names
    aligned = {*pointers, "N", "K", "stride_am", "stride_be", "stride_bn", "stride_cm", "words"} & set(names)
    source = ASTSource(
        kernel,
        signature={name: pointers.get(name, "constexpr" if name in constants else "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return compile_triton(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})


def test_it_compiles_for_hopper_with_six_instructions_for_four_weights():
    tiles = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    constants = {"NAIVE": False, "MUL_WEIGHT": True, "EVEN_K": True, "TOP_K": 8, **tiles}
    made = compiled(experts_triton.experts_kernel, constants)
    assert made.asm["cubin"]
    ptx = made.asm["ptx"]
    weights_per_thread = 64 * 64 // 128
    assert ptx.count("lop3.b32 c") + ptx.count("lop3.b32 d") == weights_per_thread // 2
    assert "mma.sync" in ptx, "on tensor cores"


def test_the_kernel_that_sorts_rows_lets_the_product_begin():
    constants = {"TOP_K": 8, "HAS_FACTORS": True, "PDL": True, "BLOCK": 1024}
    assert "griddepcontrol.launch_dependents" in compiled(experts_grouped.rows_kernel, constants).asm["ptx"]


def test_the_order_of_activations_is_that_of_the_joined_weights():
    k = torch.arange(128, dtype=torch.float16)[None]
    thread, step, half, pair = torch.meshgrid(*map(torch.arange, (4, 4, 2, 2)), indexing="ij")
    at = 16 * step + 8 * half + 2 * thread + pair  # of the tensor cores' operand
    expected = torch.empty(64)
    expected[at.flatten()] = (16 * thread + 4 * step + 2 * half + pair).flatten().float()
    assert torch.equal(interleaved(k)[0].float(), torch.cat([expected, expected + 64]))


def interpreted(script):
    """Run it with Triton's interpreter in place of its compiler."""
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script], check=True, env=env)


SORTED = """
import torch
from interleaving import interleaved
from nestedfp.kernels.experts.experts_grouped import sorted_rows

ids, in_use = torch.randperm(14), torch.tensor([19], dtype=torch.int32)
ids = torch.nn.functional.pad(torch.cat([ids[:5], torch.full((3,), 14), ids[5:]]), (0, 9), value=14).int()
kept = (ids < 14) & (torch.arange(len(ids)) < in_use)
for k in (64, 704, 2240):
    x, factors = torch.randn(7, k).half(), torch.rand(14)
    rows, scales = sorted_rows(x, ids, in_use, 2, factors=factors)
    assert torch.equal(rows[kept], interleaved(x)[ids[kept] // 2]) and torch.equal(scales[kept], factors[ids[kept]])
"""


def test_rows_are_sorted_by_expert_with_what_is_multiplied_to_them():
    interpreted(SORTED)


def test_every_layer_has_tiles_that_fit_its_products():
    compiled_rows = re.findall(r"TILE\(\d, (\d+)\)", (CSRC / "cuda/experts_tiles.inc").read_text())
    assert tuple(map(int, compiled_rows)) == expert_tiles.HEIGHTS
    assert {height for _, height in expert_tiles.EXACT_BY_ROWS} <= set(expert_tiles.HEIGHTS)
    for ks in [(2048, 768), (4096, 14336), (2048, 1408), (3584, 2560), (256, 128), (512, 320), (64, 64), (4096, 192)]:
        shapes = [(64, 2 * ks[1], ks[0]), (64, *ks)]
        for rows in (0.01, 0.1, 0.3, 1, 7, 11, 25, 64, 100, 129, 5000):
            exact = expert_tiles.exact(rows, shapes)
            for tiles in [expert_tiles.fast(rows, shapes), *([] if isinstance(exact, int) else [exact])]:
                assert len({each["BLOCK_SIZE_M"] for each in tiles}) == 1, "one assignment of rows to tiles"


def test_the_activation_rounds_to_codes_in_one_instruction_for_two():
    ptx = compiled(experts_silu.silu_codes_kernel, {"BLOCK": 1024}, "*fp16").asm["ptx"]
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx


SILU = """
import torch
from nestedfp.kernels.experts.experts_silu import silu_codes
from quantizer_reference import quantize_per_token

for k in (64, 704, 768, 2560):
    x = torch.randn(9, 2 * k).half() * 4
    x[3], x[4] = 0, x[4] * 1e-4
    codes, scales = silu_codes(x)
    gate, up = x.chunk(2, -1)
    expected, expected_scales = quantize_per_token(torch.nn.functional.silu(gate.float()).half() * up)
    assert torch.equal(scales, expected_scales)
    # Triton's interpreter rounds some codes badly: it forgets carries, and truncates subnormals.
    assert (codes.view(torch.uint8) == expected.view(torch.uint8)).float().mean() > 0.95
"""


def test_the_codes_of_gates_and_ups_are_those_of_the_activation_and_the_quantiser():
    interpreted(SILU)


LISTED = """
import torch
from nestedfp.kernels.experts import experts_listed

torch.manual_seed(3)
experts, n, k, tokens, chosen = 5, 70, 96, 9, 2
weight = torch.randn(experts, n, k).half() * 0.3
for expert, row, column, value in [(0, 69, 95, 3.0), (1, 0, 0, -2.0), *((1, row, 7, 2.5) for row in range(40)), (4, 3, 9, 9.0)]:
    weight[expert, row, column] = value
for column in range(0, 96, 3):
    weight[1, 5, column] = 4.0
deltas = weight.float() - weight.float().clamp(-1.75, 1.75)
rows, columns = deltas.flatten(0, 1).nonzero().int().T.contiguous()
listed = experts_listed.Listed.of(rows, columns, deltas[deltas != 0], experts, n)
ids = torch.randint(0, experts, (tokens, chosen)).int()
here = torch.tensor([-1, 1, 0, -1, 4], dtype=torch.int32)
weights = torch.rand(tokens, chosen)
for x in (torch.randn(tokens, 2 * k).half()[:, :k], torch.randn(tokens * chosen, k).half()):
    for of_experts in (None, here):
        for of_pairs in (None, weights):
            c = torch.randn(tokens * chosen, n).half()
            local = ids.flatten() if of_experts is None else here[ids.flatten().long()]
            added = torch.einsum("pnk,pk->pn", deltas[local.long()], x.float().repeat_interleave(len(c) // len(x), 0))
            added *= (local >= 0)[:, None] * (1.0 if of_pairs is None else weights.flatten()[:, None])
            expected = (c.float() + added).half()
            experts_listed.add(c, x, listed, ids, of_experts, of_pairs)
            assert torch.allclose(c.float(), expected.float(), rtol=1e-3, atol=1e-3)
            assert added.abs().max() > 1 and torch.equal(c[local < 0], expected[local < 0])
"""


def test_listed_weights_add_what_their_planes_lack():
    interpreted(LISTED)


def test_the_pass_over_listed_weights_compiles_for_hopper():
    constants = {"MAPPED": True, "MUL_WEIGHT": True, "TOP_K": 8}
    constants |= {"ROWS": experts_listed.ROWS, "WEIGHTS": experts_listed.WEIGHTS}
    assert compiled(experts_listed.listed_kernel, constants, "*fp16").asm["cubin"]

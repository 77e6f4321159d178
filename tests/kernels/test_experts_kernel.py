"""The Triton kernel of nested experts, without a GPU: the planes that it reads, and that it compiles for the one that it is for.

What it computes is compared on a GPU (test_gpu_moe.py).
"""

import pytest
import torch
from triton import compile as compile_triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nestedfp.format import split
from nestedfp.kernels import experts_triton

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


def test_it_compiles_for_hopper_with_six_instructions_for_four_weights():
    kernel = experts_triton.experts_kernel
    tiles = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    constants = {"NAIVE": False, "MUL_WEIGHT": True, "EVEN_K": True, "TOP_K": 8, **tiles}
    pointers = dict.fromkeys(("sorted_ids_ptr", "expert_ids_ptr", "padded_ptr"), "*i32")
    pointers |= {"a_ptr": "*fp16", "c_ptr": "*fp16", "upper_ptr": "*u8", "lower_ptr": "*u8", "weights_ptr": "*fp32"}
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        signature={name: pointers.get(name, "constexpr" if name in constants else "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]] for name in (*pointers, "N", "K", "stride_be", "stride_bn")
        },
    )
    made = compile_triton(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
    assert made.asm["cubin"]
    ptx = made.asm["ptx"]
    weights_per_thread = 64 * 64 // 128
    assert ptx.count("lop3.b32 c") + ptx.count("lop3.b32 d") == weights_per_thread // 2
    assert "mma.sync" in ptx, "on tensor cores"

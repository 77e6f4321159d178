"""The kernels of nested experts, without a GPU: the planes that they read, and that they compile for the one that they are for.

What it computes is compared on a GPU (test_gpu_moe.py).
"""

import re
import subprocess

import pytest
import torch
from triton import compile as compile_triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from nestedfp.format import split
from nestedfp.kernels import expert_tiles, experts_grouped, experts_triton

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


def compiled(kernel, source_kind, constants, num_warps, num_stages, **others):
    pointers = dict.fromkeys(("sorted_ids_ptr", "expert_ids_ptr", "padded_ptr"), "*i32")
    pointers |= {"a_ptr": "*fp16", "c_ptr": "*fp16", "upper_ptr": "*u8", "lower_ptr": "*u8", "weights_ptr": "*fp32"}
    names = kernel.arg_names
    aligned = (*pointers, "N", "K", "stride_am", "stride_be", "stride_bn", "stride_cm")
    source = source_kind(
        kernel,
        signature={name: pointers.get(name, "constexpr" if name in constants else "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": num_warps, "num_stages": num_stages, **others}
    return compile_triton(source, target=GPUTarget("cuda", 90, 32), options=options)


def test_it_compiles_for_hopper_with_six_instructions_for_four_weights():
    tiles = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    constants = {"NAIVE": False, "MUL_WEIGHT": True, "EVEN_K": True, "TOP_K": 8, **tiles}
    made = compiled(experts_triton.experts_kernel, ASTSource, constants, 4, 3)
    assert made.asm["cubin"]
    ptx = made.asm["ptx"]
    weights_per_thread = 64 * 64 // 128
    assert ptx.count("lop3.b32 c") + ptx.count("lop3.b32 d") == weights_per_thread // 2
    assert "mma.sync" in ptx, "on tensor cores"


@pytest.mark.parametrize("rows", [30, 60, 900])
def test_the_grouped_kernel_joins_half_a_step_while_the_tensor_cores_multiply_the_half_before(rows, tmp_path):
    is_grouped, (config,) = expert_tiles.exact(rows, [2048])
    assert is_grouped
    warps, stages = config["num_warps"], config["num_stages"]
    tiles = {name: value for name, value in config.items() if name.isupper()} | {"NUM_STAGES": stages}
    constants = {"MUL_WEIGHT": False, "TOP_K": 8, "INTERLEAVED_C": True, **tiles, "num_warps": warps}
    most = {name: config[name] for name in config if name == "maxnreg"}
    made = compiled(experts_grouped.grouped_kernel, GluonASTSource, constants, warps, 1, **most)
    blocks = 1 if rows == 900 else 2
    assert blocks * (made.metadata.shared + 1024) <= 228 << 10, "they fit a multiprocessor"
    (tmp_path / "cubin").write_bytes(made.asm["cubin"])
    used = subprocess.check_output([knobs.nvidia.cuobjdump.path, "-res-usage", tmp_path / "cubin"], text=True)
    assert blocks * warps * 32 * int(re.search(r"REG:(\d+)", used)[1]) <= 64 << 10, "their registers too"
    ptx = made.asm["ptx"]
    assert [ptx.count(f"wgmma.wait_group.sync.aligned {running}") for running in (1, 0)] == [2, 1]
    before, between, after = ptx.split("wgmma.commit_group")
    waited = between.split("wgmma.wait_group")[1] + after.split("cp.async.cg")[0]
    assert "bar.sync" in waited, "copies overwrite what other warps read before it"
    assert ptx.count("fence.proxy.async") == 2, "after the first copies, and in the loop"
    results = after[after.rindex("cp.async.wait_group") :]
    assert "bar.sync" in re.split("st.shared|stmatrix", results)[0], (
        "they overwrite what the other warpgroup multiplies"
    )
    for each in (before, between):
        joins, _, _ = each.partition("wgmma.mma_async")
        assert "lop3.b32 c" in joins
        assert "st.shared" not in joins, "weights go from registers to the tensor cores"


def test_the_order_of_activations_is_that_of_the_joined_weights():
    k = torch.arange(128, dtype=torch.float16)[None]
    thread, step, half, pair = torch.meshgrid(*map(torch.arange, (4, 4, 2, 2)), indexing="ij")
    at = 16 * step + 8 * half + 2 * thread + pair  # of the tensor cores' operand
    expected = torch.empty(64)
    expected[at.flatten()] = (16 * thread + 4 * step + 2 * half + pair).flatten().float()
    assert torch.equal(experts_grouped.interleave(k)[0].float(), torch.cat([expected, expected + 64]))


def test_every_layer_has_tiles_that_fit_its_products():
    for ks in [(2048, 768), (4096, 14336), (2048, 1408), (3584, 2560), (256, 128), (512, 320), (64, 64), (4096, 192)]:
        for rows in (0.01, 1, 8, 11, 25, 41, 64, 129, 5000):
            for tiles in (expert_tiles.exact(rows, ks)[1], expert_tiles.fast(rows, ks)):
                assert len({each["BLOCK_SIZE_M"] for each in tiles}) == 1, "one assignment of rows to tiles"
    assert all(tiles["BLOCK_SIZE_K"] == 64 for tiles in expert_tiles.GROUPED), "which divides every k"

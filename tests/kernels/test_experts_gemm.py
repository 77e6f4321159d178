"""The grouped products of experts, run here without a GPU: the GEMM's own sources on an emulated grid."""

import re
import struct

import emulated
import numpy as np
import pytest
import torch
from gemm_library import CSRC
from interleaving import interleaved
from torch.nn.functional import silu

from nestedfp.format import split
from nestedfp.kernels.experts import experts_triton

EXPERTS, ROWS = 5, 500  # an expert has more than 224 rows
TILES = [
    int(rows)
    for rows in re.findall(
        r"^NESTEDFP_EXPERTS_TILE\(\d, (\d+)\)", (CSRC / "cuda/experts_tiles.inc").read_text(), re.MULTILINE
    )
]


def placed(expert_of, tile_rows):
    """Rows of the result by expert, each expert's filled up to whole tiles, and two tiles behind that are not in use."""
    ids, experts = [], []
    for expert in range(EXPERTS):
        rows = (expert_of == expert).nonzero().flatten().int()
        tiles = -(-len(rows) // tile_rows)
        ids.append(torch.nn.functional.pad(rows, (0, tiles * tile_rows - len(rows)), value=len(expert_of)))
        experts += [expert] * tiles
    in_use = torch.cat(ids)
    return torch.nn.functional.pad(in_use, (0, 2 * tile_rows)), [*experts, 99, 99], len(in_use)


def run(program, tile_rows, n, k, has_scales=True, is_gated=False):
    """Return the result and what it should be."""
    generator = torch.Generator().manual_seed(tile_rows + k)
    weight = (torch.randn(EXPERTS, n, k, generator=generator) * 0.3).clamp(-1.7, 1.7).half()
    upper, lower = split(weight)
    # Expert 2 has no row, expert 3 a few.
    expert_of = torch.multinomial(torch.tensor([0.2, 0.5, 0, 0.02, 0.28]), ROWS, True, generator=generator)
    ids, tile_experts, in_use = placed(expert_of, tile_rows)
    a, scales = torch.randn(ROWS, k, generator=generator).half(), torch.rand(ROWS, generator=generator) + 0.5
    kept = ids.clamp(max=ROWS - 1).long()
    x = torch.where((ids < ROWS)[:, None], interleaved(a[kept]), torch.nan)
    head = (EXPERTS, n, k, len(ids), ROWS, len(tile_experts), tile_rows, 3, tile_rows, has_scales, is_gated)
    operands = (x, scales[kept], upper, experts_triton.recode(lower), ids)
    given = struct.pack("11q", *head) + b"".join(operand.numpy().tobytes() for operand in operands)
    ended = emulated.run(program, given + struct.pack(f"{len(tile_experts) + 1}i", *tile_experts, in_use))
    assert ended.returncode == 0, ended.stderr.decode()[:3000]
    out = torch.from_numpy(np.frombuffer(ended.stdout, dtype=np.float16).copy())
    expected = torch.einsum("rnk,rk->rn", weight[expert_of].float(), a.float())
    if has_scales:
        expected = expected * scales[:, None]
    if not is_gated:
        return out.view(ROWS, n).float(), expected
    gate, up = expected.half().chunk(2, -1)
    is_row = (ids < ROWS) & (torch.arange(len(ids)) < in_use)
    assert (out.view(-1, n // 2)[~is_row].view(torch.int16) == -1).all(), "what fills up a tile stays as it is"
    return out.view(-1, n // 2)[is_row].float(), interleaved(silu(gate.float()).half() * up)[ids[is_row].long()].float()


@pytest.mark.parametrize("tile_rows", TILES)
def test_every_tile_multiplies_rows_by_their_experts(build, tile_rows):
    out, expected = run(build.experts, tile_rows, 264, 5 * 64)
    assert torch.allclose(out, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


@pytest.mark.parametrize("tile_rows", TILES)
def test_every_tile_multiplies_gates_and_ups(build, tile_rows):
    out, expected = run(build.experts, tile_rows, 2 * 192, 3 * 64, is_gated=True)
    assert torch.allclose(out, expected, rtol=4e-3, atol=2e-3 * float(expected.std()))


@pytest.mark.parametrize("k", [64, 128])
def test_a_tile_may_have_fewer_steps_than_stages(build, k):
    out, expected = run(build.experts, 64, 384, k, has_scales=False)
    assert torch.allclose(out, expected, rtol=1e-3, atol=1e-3 * float(expected.std()))

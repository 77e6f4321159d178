"""How the CUDA GEMM chooses its tile: pure host code, built here with the C++ compiler alone. No GPU and no nvcc.

Run: ``pytest -q tests/kernels/test_gemm_config.py``
"""

import importlib.util
import itertools
import re
import sys

import pytest
from gemm_library import CUDA
from gemm_plans import parts
from gemm_plans import plan as plan_of
from gemm_shapes import SHAPES, TOKENS

from nestedfp.kernels import cuda_library

pytestmark = pytest.mark.usefixtures("host_library")

_SPEC = importlib.util.spec_from_file_location("generate_tiles", CUDA / "generate_tiles.py")
generate_tiles = importlib.util.module_from_spec(_SPEC)  # run by CMake, so it is in no package
sys.modules["generate_tiles"] = generate_tiles
_SPEC.loader.exec_module(generate_tiles)

PRECISIONS = (cuda_library.FP16, cuda_library.FP8)
ODD_PROBLEMS = [(m, n, k) for m in (1, 17, 129, 1000, 9000) for n in (1, 65, 4999, 150000) for k in (1, 64, 520, 50000)]


def problems():
    measured = [(m, n, k) for n, k in SHAPES.values() for m in TOKENS]
    return measured + ODD_PROBLEMS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_problem_gets_a_valid_config_of_its_precision(precision):
    for m, n, k in problems():
        config = cuda_library.choose(precision, m, n, k)
        assert cuda_library.tiles()[config.tile].precision == precision, f"{m=} {n=} {k=}"
        assert cuda_library.predict_us(precision, m, n, k, config) > 0, f"{m=} {n=} {k=} {config}"


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_plan_covers_every_tile_once(precision):
    for m, n, k in problems():
        for _, config in cuda_library.valid_configs(precision, m, n, k):
            tile = cuda_library.tiles()[config.tile]
            plan = plan_of(precision, m, n, k, config)
            tiles = -(-n // (64 * tile.row_warpgroups * plan["multicast_ctas"])) * -(-m // tile.tokens)
            assert plan["multicast_ctas"] == tile.multicast_ctas
            assert plan["tiles"] == tiles
            assert plan["token_tiles"] == -(-m // tile.tokens)
            # Whole tiles are strided over the blocks, and no block is idle.
            rest = tiles - plan["whole_tiles"]
            assert plan["cluster"] == (1 if config.global_workspace else config.split)
            assert plan["whole_tiles"] == tiles or plan["whole_tiles"] % plan["blocks"] == 0
            if config.split == 1:
                assert plan["blocks"] <= tiles
            elif not config.global_workspace:  # one part a block, no rank of a cluster without any
                assert plan["blocks"] % config.split == 0
                assert 0 < rest <= plan["blocks"] // config.split
                assert plan["steps"] >= 2 * config.split
            else:
                assert plan["blocks"] * plan["multicast_ctas"] <= cuda_library.NUM_SMS_H100 * tile.blocks_per_sm
                assert 0 < plan["work_units"] * plan["columns"] <= plan["blocks"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_work_units_cover_every_step_once_and_wait_for_lower_blocks_only(precision):
    shapes = [(m, n, k) for n, k in SHAPES.values() for m in (1, 96, 256, 384, 512, 1000, 1536)]
    seen = 0
    for m, n, k in [*shapes, (3, 1000, 1088), (2500, 333, 700)]:
        for _, config in cuda_library.valid_configs(precision, m, n, k):
            if not config.global_workspace or config.tile % 3:
                continue
            seen += 1
            plan = plan_of(precision, m, n, k, config)
            found = {}
            for block in range(plan["blocks"]):
                unit = parts(precision, m, n, k, config, block)
                steps = [steps for _, _, steps, _, _ in unit]
                even = (plan["tiles"] - plan["whole_tiles"]) * plan["steps"] / (plan["work_units"] * plan["columns"])
                assert not unit or abs(sum(steps) - even) < 1, f"{m=} {n=} {k=} {config}"
                # A slot holds one part's sums, only a work unit's last part waits for others, and K is begun at its begin.
                assert all(index == 0 for _, _, _, index, _ in unit[:-1])
                assert sum(count > 1 and index == 0 for _, _, _, index, count in unit) <= 1
                assert all(first == 0 for _, first, _, _, _ in unit[:-1])
                assert all(count == 1 for _, _, _, _, count in unit[:-2])
                for tile, first, steps_here, index, count in unit:
                    found.setdefault(tile, []).append((index, first, steps_here, count, block))
            assert sorted(found) == list(range(plan["tiles"] - plan["whole_tiles"]))
            for tile in found.values():
                tile.sort()
                assert [part[0] for part in tile] == list(range(len(tile)))
                assert all(part[3] == len(tile) for part in tile)
                ends = [0] + [first + steps for _, first, steps, _, _ in tile]
                assert [first for _, first, _, _, _ in tile] == ends[:-1]
                assert ends[-1] == plan["steps"]
                assert all(b[4] - a[4] == plan["columns"] for a, b in itertools.pairwise(tile))
    assert seen > 100


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_few_tokens_more_do_not_cost_a_whole_wave(precision):
    for n, k in SHAPES.values():
        for m in (512, 1024, 2048, 4096):
            at, above = (
                cuda_library.predict_us(precision, tokens, n, k, cuda_library.choose(precision, tokens, n, k))
                for tokens in (m, m + 8)
            )
            assert above < 1.3 * at, f"{m=} {n=} {k=}: {at:.1f} us, with 8 tokens more {above:.1f} us"


def test_an_unknown_or_foreign_tile_is_refused():
    assert cuda_library.predict_us(cuda_library.FP16, 16, 4096, 4096, cuda_library.Config(99)) < 0
    foreign = next(i for i, tile in enumerate(cuda_library.tiles()) if tile.precision == cuda_library.FP8)
    assert cuda_library.predict_us(cuda_library.FP16, 16, 4096, 4096, cuda_library.Config(foreign)) < 0


def test_a_split_finer_than_the_stages_of_k_is_refused():
    assert cuda_library.predict_us(cuda_library.FP16, 16, 4096, 128, cuda_library.Config(3, split=4)) < 0
    assert (
        cuda_library.predict_us(
            cuda_library.FP16, 16, 4096, 512, cuda_library.Config(3, split=8, global_workspace=True)
        )
        < 0
    )


def test_a_chip_of_another_size_gets_a_valid_config():
    for m in (1, 256, 4096):
        config = cuda_library.choose(cuda_library.FP16, m, 6144, 4096, num_sms=114)
        assert cuda_library.predict_us(cuda_library.FP16, m, 6144, 4096, config, num_sms=114) > 0


def test_clusters_that_do_not_all_run_at_once_take_one_turn_more_for_the_rest_alone():
    # 39 clusters of three blocks, of which 38 run at once: 91 us measured, 126 when all of them counted for two turns.
    tile = next(i for i, t in enumerate(cuda_library.tiles()) if t.precision == cuda_library.FP8 and str(t) == "128x96")
    fitting, beyond = (
        cuda_library.predict_us(cuda_library.FP8, 73, n, 46400, cuda_library.Config(tile, 3))
        for n in (38 * 128, 39 * 128)
    )
    assert 1.1 * fitting < beyond < 1.7 * fitting


def test_every_tile_is_instantiated_and_no_other(tmp_path):
    sources = generate_tiles.generate(tmp_path)
    compiled = re.findall(r"^NESTEDFP_INSTANTIATE\((.+)\);$", "".join(p.read_text() for p in sources), re.MULTILINE)
    built = [
        f"{'kFp8' if tile.precision else 'kFp16'}, {tile.row_warpgroups}, {tile.k_warpgroups}, {tile.tokens}, "
        f"{tile.blocks_per_sm}, {tile.multicast_ctas}"
        for tile in cuda_library.tiles()
    ]
    assert compiled == built
    assert all(path.read_text().count("NESTEDFP_INSTANTIATE") <= generate_tiles.TILES_PER_FILE for path in sources)

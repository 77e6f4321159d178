"""Main loops in machine code: the innermost with the most products."""

import pytest

from benchmarks.kernels.sass_loops import MainLoop, instantiate, main_loops

SASS = """
        Function : with_loops
    .headerflags @"EF_CUDA_SM89"
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0020*/                   LDSM.16.M88.4 R8, [R20] ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0038*/              @UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0040*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0050*/              @!P0 BRA 0x20 ;
        /*0060*/                   IADD3 R5, R5, 0x1, RZ ;
        /*0070*/               @P1 BRA 0x20 ;
        /*0080*/                   BRA 0x90 ;
        /*0090*/                   EXIT ;
        Function : without_products
        /*0000*/                   IADD3 R5, R5, 0x1, RZ ;
        /*0010*/               @P1 BRA 0x0 ;
"""


def test_the_shortest_loop_with_the_most_products_is_the_main_one():
    assert list(main_loops(SASS)) == [MainLoop("with_loops", 2, 5, 1)]


def test_tiles_are_compiled_by_their_numbers_in_the_list(tmp_path):
    (source,) = instantiate(["12", "28"], tmp_path)
    lines = [line for line in source.read_text().splitlines() if "INSTANTIATE" in line]
    assert lines == ["NESTEDFP_INSTANTIATE(kFp16, 2, 1, 256, 1, 1);", "NESTEDFP_INSTANTIATE(kFp8, 2, 1, 256, 1, 1);"]
    assert (tmp_path / "tiles/wgmma.inc").exists()


def test_a_tile_that_is_not_in_the_list_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match=r"expected tiles from 0 to .*, got 999"):
        instantiate(["999"], tmp_path)

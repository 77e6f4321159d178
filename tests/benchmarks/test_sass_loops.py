"""Main loops in machine code: the innermost with the most products."""

from benchmarks.kernels.sass_loops import MainLoop, main_loops

SASS = """
        Function : with_loops
    .headerflags @"EF_CUDA_SM89"
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
        /*0020*/                   LDSM.16.M88.4 R8, [R20] ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R2, R4 ;
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
    assert list(main_loops(SASS)) == [MainLoop("with_loops", 2, 4)]

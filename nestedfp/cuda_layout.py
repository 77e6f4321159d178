"""Shapes of the planes that the CUDA kernels read (csrc/cuda/kernels/layout.h). Pure."""


def packed_shapes(n: int, k: int) -> tuple[tuple[int, int], tuple[int]]:
    """Shapes of the planes that ``nestedfp.ops.pack`` returns for CUDA planes [n, k].

    Returns:
        ``(upper, lower)``: [n, k padded to 64], and one dimension of 4096-byte blocks: one per 64 rows and 64 columns,
        the columns padded to 128, and two neutral ones.
    """
    blocks = -(-n // 64) * (-(-k // 128) * 2) + 2
    return (n, -(-k // 64) * 64), (blocks * 4096,)

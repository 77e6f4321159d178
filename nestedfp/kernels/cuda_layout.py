"""Shapes of the planes that the CUDA kernels read (csrc/cuda/kernels/layout.h). Pure."""

BLOCK_ROWS = 64  # of a block of the lower plane
BLOCK_COLS = 64  # the same; the upper plane is padded to as many columns
LOWER_COLS_MULTIPLE = 128  # columns that the lower plane is padded to
NEUTRAL_BLOCKS = 2  # of residual 0, behind the lower plane

CONSTANTS = {  # by the library's names
    "block_rows": BLOCK_ROWS,
    "block_cols": BLOCK_COLS,
    "block_bytes": BLOCK_ROWS * BLOCK_COLS,
    "lower_cols_multiple": LOWER_COLS_MULTIPLE,
    "neutral_blocks": NEUTRAL_BLOCKS,
}


def packed_shapes(n: int, k: int) -> tuple[tuple[int, int], tuple[int]]:
    """Shapes of the planes that ``nestedfp.kernels.ops.pack`` returns for CUDA planes [n, k].

    Returns:
        ``(upper, lower)``: [n, k padded to 64], and one dimension of 4096-byte blocks: one per 64 rows and 64 columns,
        the columns padded to 128, and two neutral ones.
    """
    lower_cols = -(-k // LOWER_COLS_MULTIPLE) * LOWER_COLS_MULTIPLE
    blocks = -(-n // BLOCK_ROWS) * (lower_cols // BLOCK_COLS) + NEUTRAL_BLOCKS
    return (n, -(-k // BLOCK_COLS) * BLOCK_COLS), (blocks * BLOCK_ROWS * BLOCK_COLS,)

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

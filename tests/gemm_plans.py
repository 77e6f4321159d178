"""How the GEMMs cut problems into work, by the library that gemm_library.py builds."""

import ctypes

from nestedfp.kernels.cuda_library import NUM_SMS_H100, library

PLAN = ("blocks", "row_tiles", "token_tiles", "raster_group", "tiles", "whole_tiles", "cluster", "steps")
PLAN += ("work_units", "columns", "multicast_ctas")


def _problem(precision, m, n, k, config):
    return precision, *map(ctypes.c_int64, (m, n, k)), NUM_SMS_H100, ctypes.byref(config.fields())


def plan(precision, m, n, k, config):
    """Return how a problem is cut into work (csrc/cuda/config/gemm.h)."""
    result = (ctypes.c_int * len(PLAN))()
    library().nestedfp_plan(*_problem(precision, m, n, k, config), result)
    return dict(zip(PLAN, result, strict=True))


def parts(precision, m, n, k, config, block):
    """Return a block's work unit as (tile, first step, steps, index, count), in its order (csrc/cuda/config/stream_k.h)."""
    fields = (ctypes.c_int * (5 * 1024))()
    count = library().nestedfp_parts(*_problem(precision, m, n, k, config), block, fields)
    return [tuple(fields[5 * i : 5 * i + 5]) for i in range(count)]


def portable_work(operands, m, n, k, tile, split):
    """Yield every block's row tile, token tile, first step and step after the last."""
    fields, sizes = (ctypes.c_int * 4)(), tuple(map(ctypes.c_int64, (m, n, k)))
    blocks = library().nestedfp_portable_work(operands, *sizes, tile, split, 0, fields)
    for block in range(blocks):
        library().nestedfp_portable_work(operands, *sizes, tile, split, block, fields)
        yield tuple(fields)

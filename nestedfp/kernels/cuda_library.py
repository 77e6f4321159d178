"""The CUDA kernels' C functions (csrc/cuda/capi): configs of the GEMM, what they are predicted to take, and timing them.

The product multiplies through torch.ops.nestedfp, which chooses a config by itself; this module is for who chooses or judges
configs: nestedfp/kernels/tuning, benchmarks and tests. The library is the installed module nestedfp_cuda_C, or the file that
NESTEDFP_CUDA_LIBRARY names.
"""

import ctypes
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch

from nestedfp.kernels.gpu_kernels import is_portable, library_path
from nestedfp.modes import CODES, Mode

FP16, FP8 = CODES[Mode.FP16], CODES[Mode.FP8]
NUM_SMS_H100 = 132
# Those of csrc/cuda/config/gemm.h and of kernels/layout.h.
STREAM_K = 0  # the split of a config that is Stream-K
MAX_CLUSTER_PARTS = 4  # of split-K in a cluster
MAX_WORKSPACE_PARTS = 8  # of split-K with a global workspace
MAX_WORKSPACE_BYTES = 64 << 20  # the most that a workspace may have
BLOCK_ROWS = BLOCK_COLS = 64  # of a block of the lower plane; the upper plane is padded to as many columns

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Config(NamedTuple):
    """A compiled tile and how K is split (csrc/cuda/config/gemm.h); split 0 is Stream-K (STREAM_K)."""

    tile: int
    split: int = 1
    tail_only: bool = False
    global_workspace: bool = False

    def fields(self) -> "_Config":
        """As the C functions take it."""
        return _Config(*self)


class _Config(ctypes.Structure):
    _fields_: ClassVar = list(zip(Config._fields, (_INT, _INT, ctypes.c_bool, ctypes.c_bool), strict=True))


class Tile(NamedTuple):
    """A compiled kernel (csrc/cuda/config/tiles.h)."""

    precision: int
    row_warpgroups: int
    k_warpgroups: int
    tokens: int
    blocks_per_sm: int
    multicast_ctas: int

    def __str__(self) -> str:
        sharing = f"k{self.k_warpgroups}" if self.k_warpgroups > 1 else ""
        residency = ("/2" if self.blocks_per_sm == 2 else "") + ("c2" if self.multicast_ctas == 2 else "")
        return f"{64 * self.row_warpgroups}x{self.tokens}{sharing}{residency}"


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One weight in the kernels' layout (csrc/cuda/kernels/layout.h)."""

    upper: torch.Tensor  # [N, K padded to 64] uint8
    lower: torch.Tensor  # blocks, uint8; empty where FP8 alone runs
    n: int
    k: int


@cache
def library() -> ctypes.CDLL:
    """Load the kernels.

    Raises:
        ImportError: when they are not installed.
    """
    lib = ctypes.CDLL(os.environ.get("NESTEDFP_CUDA_LIBRARY") or library_path())
    lib.nestedfp_tiles.restype = ctypes.POINTER(_INT * len(Tile._fields))
    lib.nestedfp_mixed_tiles.restype = ctypes.POINTER(_INT * 4)
    problem: list[Any] = [_INT, _LONG, _LONG, _LONG, _INT, ctypes.POINTER(_Config)]
    lib.nestedfp_predict.argtypes, lib.nestedfp_predict.restype = problem, ctypes.c_double
    lib.nestedfp_choose.argtypes = problem
    lib.nestedfp_take_timing.argtypes = [*problem, ctypes.c_double]
    lib.nestedfp_workspace_bytes.argtypes, lib.nestedfp_workspace_bytes.restype = problem, _LONG
    mixed: list[Any] = [_LONG, _LONG, _LONG, _LONG, _INT, ctypes.POINTER(_INT)]
    lib.nestedfp_mixed_workspace.argtypes, lib.nestedfp_mixed_workspace.restype = mixed, _LONG
    lib.nestedfp_choose_mixed.argtypes = mixed
    lib.nestedfp_take_mixed.argtypes = [_LONG, _LONG, _LONG, ctypes.POINTER(_INT)]
    cut: list[Any] = [_INT, _LONG, _LONG, _LONG, _INT]
    lib.nestedfp_portable_plan.argtypes = [*cut, ctypes.POINTER(_INT)]
    lib.nestedfp_portable_workspace_bytes.argtypes = [*cut, _INT]
    lib.nestedfp_portable_workspace_bytes.restype = _LONG
    if not hasattr(lib, "nestedfp_gemm"):  # built without CUDA, for tests of the choice of configs
        return lib
    lib.nestedfp_gemm.argtypes = [*problem, _POINTER, _LONG, *[_POINTER] * 3, _INT, *[_POINTER] * 3, _INT, _POINTER]
    lib.nestedfp_time_chain.argtypes = [*problem, *[_POINTER] * 6, _INT, *[_POINTER] * 2, _INT, _INT, *[_POINTER] * 2]
    lib.nestedfp_portable_gemm.argtypes = [*cut, _INT, _POINTER, _LONG, *[_POINTER] * 7]
    lib.nestedfp_quantize.argtypes = [_POINTER, _LONG, _POINTER, _POINTER, _LONG, _LONG, _INT, _POINTER]
    if not is_portable(torch.cuda.get_device_capability()):
        check(lib.nestedfp_prepare(), "prepare")
    return lib


def check(error: int, what: str) -> None:
    """Raise for a C function that returned a CUDA error.

    Raises:
        RuntimeError: unless ``error`` is 0.
    """
    if error:
        raise RuntimeError(f"{what}: CUDA error {error}")


@cache
def tiles() -> tuple[Tile, ...]:
    """Every compiled tile, by index."""
    lib = library()
    return tuple(Tile(*fields) for fields in lib.nestedfp_tiles()[: lib.nestedfp_tile_count()])


def mixed_tiles() -> list[tuple[int, int, int, int]]:
    """Every compiled tile of the mixed GEMM: the fields of MixedTile (csrc/cuda/config/mixed.h)."""
    lib = library()
    return [tuple(fields) for fields in lib.nestedfp_mixed_tiles()[: lib.nestedfp_mixed_tile_count()]]


def describe(config: Config) -> str:
    """Short name of a config: ``128x64s2``, ``t2`` if only the tail is split, ``g`` with a global workspace, ``s0g`` Stream-K."""
    split = "" if config.split == 1 else f"{'t' if config.tail_only else 's'}{config.split}"
    split += "g" if config.global_workspace else ""
    return f"{tiles()[config.tile]}{split}"


def choose(precision: int, m: int, n: int, k: int, num_sms: int = NUM_SMS_H100) -> Config:
    """Return the config that the product uses."""
    chosen = _Config()
    library().nestedfp_choose(precision, m, n, k, num_sms, chosen)
    return Config(*(getattr(chosen, name) for name in Config._fields))


def predict_us(precision: int, m: int, n: int, k: int, config: Config, num_sms: int = NUM_SMS_H100) -> float:
    """Return the cost model's microseconds; negative when the config is not valid for the problem."""
    return float(library().nestedfp_predict(precision, m, n, k, num_sms, config.fields()))


def valid_configs(
    precision: int, m: int, n: int, k: int, num_sms: int = NUM_SMS_H100
) -> Iterator[tuple[float, Config]]:
    """Every config that can compute a problem, with its predicted microseconds."""
    for index, tile in enumerate(tiles()):
        if tile.precision != precision:
            continue
        splits = [(s, False) for s in range(1, MAX_CLUSTER_PARTS + 1)]
        splits += [(s, True) for s in range(STREAM_K, MAX_WORKSPACE_PARTS + 1)]
        for config in [Config(index, s, tail, workspace) for s, workspace in splits for tail in (False, True)]:
            us = predict_us(precision, m, n, k, config, num_sms)
            if us >= 0:
                yield us, config


@cache
def _timing_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # one for all: each takes a set of semaphores (csrc/cuda/host/launch.h)


class Chain:
    """Times configs of one GEMM in the place that it has in a model: time_chain of csrc/cuda/host/launch.h.

    Args:
        precision: FP16 or FP8; the latter with the quantiser in every link.
        m: tokens.
        weights: of one shape; the links use them in turn. Rotate over more than L2 holds, as a model's layers do.
        num_sms: multiprocessors of the current device.
        window_us: for how long a config runs at least, a third of it to warm up.
    """

    REPLAYS = 4

    def __init__(
        self,
        precision: int,
        m: int,
        weights: Sequence[PackedWeight],
        num_sms: int = NUM_SMS_H100,
        window_us: float = 2000.0,
    ) -> None:
        n, k = weights[0].n, weights[0].k
        self._problem = (precision, m, n, k, num_sms)
        count = len(weights)
        self._upper = (_POINTER * count)(*(weight.upper.data_ptr() for weight in weights))
        self._lower = (_POINTER * count)(*(weight.lower.data_ptr() for weight in weights))
        self._weights = count
        self._keep = list(weights)
        device, half = weights[0].upper.device, torch.float16
        source = torch.randn(m, k, device=device, dtype=half)
        x, out = torch.empty_like(source), torch.empty(m, n, device=device, dtype=half)
        codes = torch.empty(m, weights[0].upper.shape[1], device=device, dtype=torch.uint8)
        scale = torch.empty(m, device=device)
        sums = torch.empty(MAX_WORKSPACE_BYTES // 4, device=device)
        self._buffers = (source, x, codes, scale, out, sums)
        # At least this long: the weight at 3 TB/s, or the arithmetic at 800 TFLOP/s (FP8 twice that).
        least_us = max(n * k * (2 - precision) / 3e6, 2 * m * n * k / (8e8 * (1 + precision))) + 4
        self._links = max(1, math.ceil(window_us / (self.REPLAYS + 1) / least_us))
        torch.cuda.synchronize()
        self._rest_us = self._link_us(None)

    def _link_us(self, config: Config | None) -> float:
        source, x, codes, scale, out, sums = (buffer.data_ptr() for buffer in self._buffers)
        us = (ctypes.c_float * self.REPLAYS)()
        error = library().nestedfp_time_chain(
            *self._problem,
            None if config is None else config.fields(),
            source,
            x,
            codes,
            scale,
            ctypes.cast(self._upper, _POINTER),
            ctypes.cast(self._lower, _POINTER),
            self._weights,
            out,
            sums,
            self._links,
            self.REPLAYS,
            _timing_stream().cuda_stream,
            us,
        )
        precision, m, n, k, _ = self._problem
        check(error, f"timing {'no config' if config is None else describe(config)} of {precision=} {m=} {n=} {k=}")
        return float(statistics.median(us))

    def gemm_us(self, config: Config) -> float:
        """Return the microseconds that a GEMM with this config adds to the chain; the config must be valid."""
        return max(0.1, self._link_us(config) - self._rest_us)

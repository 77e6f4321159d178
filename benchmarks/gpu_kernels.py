"""The CUDA kernels through their C functions (csrc/cuda/capi.h), with a config of the caller's choice.

For benchmarks, tuning and kernel tests; the product calls torch.ops.nestedfp.

The library is the installed module nestedfp_cuda_C, or the file that NESTEDFP_CUDA_LIBRARY names.
"""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

FP16, FP8 = 0, 1
NUM_SMS_H100 = 132

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


@dataclass(frozen=True, slots=True)
class Config:
    """A compiled tile and how K is split (csrc/cuda/gemm.h); split 0: every block gets as many steps."""

    tile: int
    split: int = 1
    tail_only: bool = False
    through_memory: bool = False

    def fields(self) -> "ctypes.Array[ctypes.c_int]":
        """As the C functions take it."""
        return (_INT * 4)(self.tile, self.split, self.tail_only, self.through_memory)


@dataclass(frozen=True, slots=True)
class Tile:
    """A compiled kernel (csrc/cuda/gemm.h)."""

    precision: int
    row_warpgroups: int
    k_warpgroups: int
    tokens: int
    blocks_per_sm: int
    pair: int

    def __str__(self) -> str:
        sharing = f"k{self.k_warpgroups}" if self.k_warpgroups > 1 else ""
        residency = ("/2" if self.blocks_per_sm == 2 else "") + ("p" if self.pair == 2 else "")
        return f"{64 * self.row_warpgroups}x{self.tokens}{sharing}{residency}"


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One weight in the kernels' layout (csrc/cuda/layout.h)."""

    upper: torch.Tensor  # [N, K padded to 64] uint8
    lower: torch.Tensor  # blocks, uint8
    n: int
    k: int


@cache
def library() -> ctypes.CDLL:
    """Load the kernels."""
    path = os.environ.get("NESTEDFP_CUDA_LIBRARY")
    if path is None:
        spec = importlib.util.find_spec("nestedfp_cuda_C")
        if spec is None or spec.origin is None:
            raise ImportError(
                "nestedfp_cuda_C is not installed: build on a machine with nvcc, or set NESTEDFP_CUDA_LIBRARY"
            )
        path = spec.origin
    lib = ctypes.CDLL(path)
    problem = [_INT, _LONG, _LONG, _LONG, _INT, ctypes.POINTER(_INT)]
    lib.nestedfp_predict.argtypes, lib.nestedfp_predict.restype = problem, ctypes.c_double
    lib.nestedfp_choose.argtypes = problem
    lib.nestedfp_plan.argtypes = [*problem, ctypes.POINTER(_INT)]
    lib.nestedfp_parts.argtypes = [*problem, _INT, ctypes.POINTER(_INT)]
    lib.nestedfp_partial_sum_bytes.argtypes, lib.nestedfp_partial_sum_bytes.restype = problem, _LONG
    if not hasattr(lib, "nestedfp_gemm"):  # built without CUDA, for tests of the choice of configs
        return lib
    lib.nestedfp_gemm.argtypes = [*problem, _POINTER, _LONG, *[_POINTER] * 3, _INT, *[_POINTER] * 3, _INT, _POINTER]
    lib.nestedfp_split.argtypes = [_POINTER] * 3 + [_LONG, _POINTER, _POINTER]
    lib.nestedfp_pack.argtypes = [_POINTER] * 4 + [_LONG, _LONG, _POINTER]
    lib.nestedfp_unpack.argtypes = [_POINTER] * 4 + [_LONG, _LONG, _POINTER]
    lib.nestedfp_quantize.argtypes = [_POINTER, _LONG, _POINTER, _POINTER, _LONG, _LONG, _POINTER]
    lib.nestedfp_outliers.argtypes = [_POINTER, _LONG, *[_POINTER] * 3, _LONG, _POINTER, _LONG, _LONG, _POINTER]
    lib.nestedfp_upper_pitch.argtypes, lib.nestedfp_upper_pitch.restype = [_LONG], _LONG
    lib.nestedfp_lower_bytes.argtypes, lib.nestedfp_lower_bytes.restype = [_LONG, _LONG], _LONG
    _check(lib.nestedfp_prepare(), "prepare")
    return lib


@cache
def tiles() -> tuple[Tile, ...]:
    """Every compiled tile, by index."""
    found = []
    for index in range(library().nestedfp_tile_count()):
        fields = (_INT * 6)()
        library().nestedfp_tile(index, fields)
        found.append(Tile(*fields))
    return tuple(found)


def describe(config: Config) -> str:
    """Short name of a config: ``128x64s2``, ``t2`` if only the tail is split, ``m`` through memory, ``s0m`` even shares."""
    split = "" if config.split == 1 else f"{'t' if config.tail_only else 's'}{config.split}"
    split += "m" if config.through_memory else ""
    return f"{tiles()[config.tile]}{split}"


def choose(precision: int, m: int, n: int, k: int, num_sms: int = NUM_SMS_H100) -> Config:
    """Return the config that the product uses."""
    config = (_INT * 4)()
    library().nestedfp_choose(precision, m, n, k, num_sms, config)
    return Config(config[0], config[1], bool(config[2]), bool(config[3]))


def predict_us(precision: int, m: int, n: int, k: int, config: Config, num_sms: int = NUM_SMS_H100) -> float:
    """Return the cost model's microseconds; negative when the config is not valid for the problem."""
    return float(library().nestedfp_predict(precision, m, n, k, num_sms, config.fields()))


def plan(precision: int, m: int, n: int, k: int, config: Config, num_sms: int = NUM_SMS_H100) -> dict[str, int]:
    """Return how a problem is cut into work (csrc/cuda/gemm.h)."""
    names = ("blocks", "row_tiles", "token_tiles", "group", "tiles", "whole_tiles", "cluster", "steps", "shares")
    names += ("columns", "pair")
    result = (_INT * len(names))()
    library().nestedfp_plan(precision, m, n, k, num_sms, config.fields(), result)
    return dict(zip(names, result, strict=True))


def parts(
    precision: int, m: int, n: int, k: int, config: Config, block: int, num_sms: int = NUM_SMS_H100
) -> list[tuple[int, int, int, int, int]]:
    """Return a block's share as (tile, first step, steps, index, count), in its order (csrc/cuda/shares.h)."""
    fields = (_INT * (5 * 1024))()
    count = library().nestedfp_parts(precision, m, n, k, num_sms, config.fields(), block, fields)
    return [tuple(fields[5 * i : 5 * i + 5]) for i in range(count)]  # type: ignore[misc]


def valid_configs(precision: int, m: int, n: int, k: int) -> Iterator[tuple[float, Config]]:
    """Every config that can compute a problem, with its predicted microseconds."""
    for index, tile in enumerate(tiles()):
        if tile.precision != precision:
            continue
        splits = [(s, False) for s in range(1, 5)] + [(s, True) for s in range(9)]
        for config in [Config(index, s, tail, memory) for s, memory in splits for tail in (False, True)]:
            us = predict_us(precision, m, n, k, config)
            if us >= 0:
                yield us, config


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def _check(error: int, what: str) -> None:
    if error:
        raise RuntimeError(f"{what}: CUDA error {error}")


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split [N, K] float16 into canonical planes, and count what does not fit."""
    upper = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    lower = torch.empty_like(upper)
    counts = torch.zeros(2, dtype=torch.int64, device=weight.device)
    args = (weight.data_ptr(), upper.data_ptr(), lower.data_ptr(), weight.numel(), counts.data_ptr(), _stream())
    _check(library().nestedfp_split(*args), "split")
    return upper, lower, counts


def pack(upper: torch.Tensor, lower: torch.Tensor) -> PackedWeight:
    """Rearrange canonical planes for the GEMM."""
    n, k = upper.shape
    packed_upper = torch.empty(n, library().nestedfp_upper_pitch(k), dtype=torch.uint8, device=upper.device)
    packed_lower = torch.empty(library().nestedfp_lower_bytes(n, k), dtype=torch.uint8, device=upper.device)
    pointers = (upper.data_ptr(), lower.data_ptr(), packed_upper.data_ptr(), packed_lower.data_ptr())
    _check(library().nestedfp_pack(*pointers, n, k, _stream()), "pack")
    return PackedWeight(packed_upper, packed_lower, n, k)


def unpack(weight: PackedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """Undo ``pack``."""
    upper = torch.empty(weight.n, weight.k, dtype=torch.uint8, device=weight.upper.device)
    lower = torch.empty_like(upper)
    pointers = (weight.upper.data_ptr(), weight.lower.data_ptr(), upper.data_ptr(), lower.data_ptr())
    _check(library().nestedfp_unpack(*pointers, weight.n, weight.k, _stream()), "unpack")
    return upper, lower


def quantize(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Quantise [M, K] float16 into ``codes`` [M, K padded to 64] uint8, permuted, and ``scale`` [M] float32."""
    m, k = x.shape
    args = (x.data_ptr(), x.stride(0), codes.data_ptr(), scale.data_ptr(), m, k, _stream())
    _check(library().nestedfp_quantize(*args), "quantize")


def gemm(
    config: Config,
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    neutral_lower: bool = False,
    early_start: bool = True,
) -> None:
    """Compute ``out`` [M, N] from ``x`` [M, K] float16, or from codes and ``scale`` if the tile is an FP8 one."""
    problem = (tiles()[config.tile].precision, x.shape[0], weight.n, weight.k, NUM_SMS_H100, config.fields())
    scratch_bytes = library().nestedfp_partial_sum_bytes(*problem)
    scratch = torch.empty(scratch_bytes // 4, device=x.device) if scratch_bytes else None
    error = library().nestedfp_gemm(
        *problem,
        x.data_ptr(),
        x.stride(0),
        None if scale is None else scale.data_ptr(),
        weight.upper.data_ptr(),
        weight.lower.data_ptr(),
        neutral_lower,
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        None if scratch is None else scratch.data_ptr(),
        early_start,
        _stream(),
    )
    _check(error, f"gemm {describe(config)} m={x.shape[0]} n={weight.n} k={weight.k}")


def outliers(x: torch.Tensor, rows: torch.Tensor, cols: torch.Tensor, deltas: torch.Tensor, out: torch.Tensor) -> None:
    """Add the listed weights' share to ``out``."""
    lists = (rows.data_ptr(), cols.data_ptr(), deltas.data_ptr(), rows.numel())
    _check(
        library().nestedfp_outliers(x.data_ptr(), x.stride(0), *lists, out.data_ptr(), *out.shape, _stream()),
        "outliers",
    )

"""Shards rewritten one by one, a tensor at a time: weights into planes, or planes into weights. All else keeps its bytes.

A file is as the safetensors library writes it. Both directions go through a shard in the order of the plain one, so that the
digest of a plain shard's data is known on both sides: conversion writes it into the nested shard's metadata, restoration compares.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Set
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import torch

from nestedfp.checkpoint import DTYPE_BYTES, PLANES, CheckpointError, read_header
from nestedfp.kernels import ops
from nestedfp.offline.folder import new_folder, write_rest
from nestedfp.offline.reading import Progress, Weight, read

# The library sorts tensors by type, these first, so that each is aligned, then by name.
_FIRST = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E8M0", "F8_E4M3", "F8_E5M2")
DIGEST_KEY = "nestedfp_restored_sha256"  # of a converted shard's metadata: of the plain shard's data


def rewrite(
    source: Path,
    target: Path,
    weights: Mapping[str, Weight],
    nested: Set[str],
    config: Mapping[str, Any],
    progress: Progress,
) -> dict[str, str]:
    """Write a checkpoint folder in which the weights of ``nested`` are planes and all others plain.

    Args:
        source: the folder that holds ``weights``.
        target: the folder to make.
        nested: names of weights without a value beyond 1.75, or which are planes already.
        config: of the new config.json.
        progress: is told of bytes read.

    Returns:
        The digest (SHA-256) of the data of each plain shard by the shard's name.

    Raises:
        CheckpointError: the source has changed, or planes are damaged.
        OSError: a file cannot be read or written.
    """
    digests: dict[str, str] = {}
    places: dict[str, str] = {}
    nbytes = 0
    with new_folder(source, target) as made:
        for shard in sorted({weight.shard for weight in weights.values()}):
            held = {name: weight for name, weight in weights.items() if weight.shard == shard}
            becomes = {name: _becomes(name, weight, nested) for name, weight in held.items()}
            planned = {new: kind for kinds in becomes.values() for new, kind in kinds.items()}
            digests[shard.name] = _rewrite_shard(shard, held, becomes, planned, made / shard.name, progress)
            places |= dict.fromkeys(planned, shard.name)
            nbytes += sum(DTYPE_BYTES[dtype] * prod(shape) for dtype, shape in planned.values())
        write_rest(source, made, config, places, nbytes)
    return digests


Kind = tuple[str, tuple[int, ...]]  # a tensor's type and shape


def _becomes(name: str, weight: Weight, nested: Set[str]) -> dict[str, Kind]:
    """Return type and shape of what a weight is written as, by name: itself, or planes."""
    if name not in nested:
        return {name: (weight.dtype, weight.shape)}
    return {name.removesuffix(".weight") + plane: ("U8", weight.shape) for plane in PLANES}


def _rewrite_shard(
    shard: Path,
    held: Mapping[str, Weight],
    becomes: Mapping[str, Mapping[str, Kind]],
    planned: Mapping[str, Kind],
    made: Path,
    progress: Progress,
) -> str:
    """Return the digest of the plain shard's data."""
    metadata = read_header(shard)[1]
    known = metadata.pop(DIGEST_KEY, None)
    plain = {name: "F16" if len(becomes[name]) == 2 else weight.dtype for name, weight in held.items()}
    if any(len(kinds) == 2 for kinds in becomes.values()):
        metadata = {"format": "pt", **metadata, DIGEST_KEY: "0" * 64}
    digest = sha256()
    header, begins = _header(planned, metadata)
    with made.open("wb") as file:
        for name in _in_file_order(plain):
            pieces, data = _pieces(name, held[name], to_planes=len(becomes[name]) == 2)
            digest.update(data)
            for new, piece in zip(becomes[name], pieces, strict=True):
                file.seek(begins[new])
                file.write(piece)
            progress(held[name].nbytes)
        if DIGEST_KEY in metadata:
            metadata[DIGEST_KEY] = digest.hexdigest()
            header, _ = _header(planned, metadata)
        file.seek(0)
        file.write(header)
    if known is not None and known != digest.hexdigest():
        raise CheckpointError(
            f"{shard}: its planes do not join to the weights that it was made from (SHA-256 {digest.hexdigest()[:16]}..., "
            f"expected {known[:16]}...); copy it again, or convert the original checkpoint again"
        )
    return digest.hexdigest()


def _pieces(name: str, weight: Weight, *, to_planes: bool) -> tuple[list[memoryview], memoryview]:
    """Return the bytes of what a weight is written as, and those that the plain checkpoint has for it."""
    parts = read(name, weight)
    if to_planes:
        half = parts[0].to(torch.float16)
        upper, lower, counts = ops.split(half)
        if counts.any():
            raise CheckpointError(f"{weight.shard}: {name} has changed while it was being converted; convert again")
        return [_bytes(upper), _bytes(lower)], _bytes(half)
    if len(parts) == 2:
        whole = ops.join(*parts)
        # Not every wrong upper byte changes the joined weight, which is all that the digest knows.
        if not all(map(torch.equal, ops.split(whole)[:2], parts)):
            raise CheckpointError(
                f"{weight.shard}: {name}: its planes are damaged, no weight has such bytes; copy the shard again, or "
                "convert the original checkpoint again"
            )
        parts = [whole]
    data = _bytes(parts[0])
    return [data], data


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def _in_file_order(dtypes: Mapping[str, str]) -> Iterable[str]:
    """Return names of tensors in the order in which the safetensors library stores them."""
    rank = {dtype: place for place, dtype in enumerate((*_FIRST, "I8", "U8", "BOOL"))}
    return sorted(dtypes, key=lambda name: (rank.get(dtypes[name], len(rank)), name))


def _header(tensors: Mapping[str, Kind], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return a file's first bytes, and where each tensor's data begin."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    ends = [0]
    for name in _in_file_order({name: dtype for name, (dtype, _) in tensors.items()}):
        dtype, shape = tensors[name]
        ends.append(ends[-1] + DTYPE_BYTES[dtype] * prod(shape))
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": ends[-2:]}
    raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    first = 8 + len(raw)
    return struct.pack("<Q", len(raw)) + raw, {name: first + entries[name]["data_offsets"][0] for name in tensors}

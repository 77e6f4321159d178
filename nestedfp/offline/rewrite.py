"""Shards rewritten one by one: weights into planes, or planes into weights. Everything else keeps its bytes.

Both directions go through a shard in the order of the plain one, so that the digest of a plain shard's data is known on both
sides: conversion writes it into the nested shard's metadata, restoration compares.
"""

import json
import os
import struct
from collections.abc import Mapping, Set
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import torch

from nestedfp.checkpoint import DTYPE_BYTES, PLANES, CheckpointError, read_header
from nestedfp.kernels import ops
from nestedfp.offline.folder import Kinds, partial_folder, write_rest
from nestedfp.offline.reading import Chunk, Progress, Weight, chunks

# The safetensors library sorts tensors by type, these first, so that each is aligned, then by name.
_ORDER = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E8M0", "F8_E4M3", "F8_E5M2")
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
        The digest (SHA-256) of the data of each plain shard by the shard's name; of shards that an interrupted run had written
        the one in their metadata, if it is there.

    Raises:
        CheckpointError: the target was made by somebody else, the source has changed, planes are damaged.
        OSError: a file cannot be read or written; what is done stays for the next run.
    """
    expected: Kinds = {
        new: (weight.shard.name, dtype, shape)
        for name, weight in weights.items()
        for new, dtype, shape in _becomes(name, weight, nested)
    }
    nbytes = sum(DTYPE_BYTES[dtype] * prod(shape) for _, dtype, shape in expected.values())
    digests = {}
    with partial_folder(source, target, [sorted(nested), config]) as partial:
        for shard in sorted({weight.shard for weight in weights.values()}):
            held = {name: weight for name, weight in weights.items() if weight.shard == shard}
            if (made := partial / shard.name).is_file():
                digests[shard.name] = read_header(made)[1].get(DIGEST_KEY, "")
                progress(sum(weight.nbytes for weight in held.values()))
            else:
                digests[shard.name] = _rewrite_shard(shard, held, nested, made, progress)
        write_rest(source, partial, config, expected, nbytes)
    return digests


def _becomes(name: str, weight: Weight, nested: Set[str]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, type and shape of what a weight is written as."""
    if name not in nested:
        return [(name, weight.dtype, weight.shape)]
    return [(name.removesuffix(".weight") + plane, "U8", weight.shape) for plane in PLANES]


def _rewrite_shard(shard: Path, held: Mapping[str, Weight], nested: Set[str], made: Path, progress: Progress) -> str:
    """Return the digest of the plain shard's data."""
    planned = {
        new: (dtype, shape) for name, weight in held.items() for new, dtype, shape in _becomes(name, weight, nested)
    }
    metadata = read_header(shard)[1]
    known = metadata.pop(DIGEST_KEY, None)
    if nested & held.keys():
        metadata.setdefault("format", "pt")
        metadata[DIGEST_KEY] = "0" * 64  # until it is known
    plain = {name: "F16" if name in nested else weight.dtype for name, weight in held.items()}
    digest, (header, places) = sha256(), _header_of(planned, metadata)
    temporary = made.with_name(f"{made.name}.tmp")
    with temporary.open("wb") as file:
        file.write(header)
        for chunk in chunks(held, _in_file_order(plain)):
            whole, pieces = _converted(held[chunk.name], chunk, chunk.name in nested)
            for name, tensor in pieces.items():
                file.seek(places[name] + chunk.first * DTYPE_BYTES[planned[name][0]])
                file.write(_bytes(tensor))
            digest.update(_bytes(whole))
            progress(sum(part.nbytes for part in chunk.parts))
        found = digest.hexdigest()
        if DIGEST_KEY in metadata:
            file.seek(0)
            file.write(_header_of(planned, {**metadata, DIGEST_KEY: found})[0])
        file.flush()
        os.fsync(file.fileno())
    if known is not None and known != found:
        raise CheckpointError(
            f"{shard}: its planes do not join to the weights that it was made from (SHA-256 {found[:16]}..., expected "
            f"{known[:16]}...); copy it again, or convert the original checkpoint again"
        )
    temporary.rename(made)
    return found


def _converted(weight: Weight, chunk: Chunk, to_planes: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return a chunk as the plain shard has it, and what is written of it, by name.

    Raises:
        CheckpointError: the weight has become another one, or its planes are damaged.
    """
    if to_planes:
        half = chunk.parts[0].to(torch.float16)
        *planes, counts = ops.split(half.view(1, -1))
        if counts.any():
            raise CheckpointError(
                f"{weight.shard}: {chunk.name} has changed while it was being converted; convert again"
            )
        stem = chunk.name.removesuffix(".weight")
        return half, {stem + name: plane for name, plane in zip(PLANES, planes, strict=True)}
    if len(chunk.parts) == 1:
        return chunk.parts[0], {chunk.name: chunk.parts[0]}
    upper, lower = (part.view(1, -1) for part in chunk.parts)
    whole = ops.join(upper, lower)
    # Not every wrong upper byte changes the joined weight, which is all that the digest knows.
    if not all(map(torch.equal, ops.split(whole)[:2], (upper, lower))):
        raise CheckpointError(
            f"{weight.shard}: {chunk.name}: its planes are damaged, no weight has such bytes; copy the shard again, or "
            "convert the original checkpoint again"
        )
    return whole, {chunk.name: whole}


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def _in_file_order(dtypes: Mapping[str, str]) -> list[str]:
    """Return names of tensors in the order in which the safetensors library stores them."""
    rank = {dtype: place for place, dtype in enumerate((*_ORDER, "I8", "U8", "BOOL"))}
    return sorted(dtypes, key=lambda name: (rank.get(dtypes[name], len(rank)), name))


def _header_of(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file with these tensors, type and shape by name, and where in the file each begins."""
    entries: dict[str, Any] = {}
    places, end = {}, 0
    for name in _in_file_order({name: dtype for name, (dtype, _) in tensors.items()}):
        dtype, shape = tensors[name]
        places[name], end = end, end + DTYPE_BYTES[dtype] * prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [places[name], end]}
    head = {"__metadata__": metadata} if metadata else {}
    raw = json.dumps({**head, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw, {name: 8 + len(raw) + begin for name, begin in places.items()}

"""Files of a Hugging Face checkpoint folder: which safetensors shards it has, and whether they are whole.

Knows paths and file headers, not the NestedFP format. Needs neither torch nor vLLM.
A safetensors file is: u64 little-endian header length, JSON header ``{name: {"dtype", "shape", "data_offsets"}}``, data.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100 << 20  # the limit of the safetensors library


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message names the file, what was expected and what to do."""


def list_shards(model_dir: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder, sorted.

    Raises:
        CheckpointError: when there are none, or when one that the index names is missing.
    """
    index = model_dir / INDEX_NAME
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, AttributeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{index}: not a safetensors index ({error!r}); copy the checkpoint again") from None
        missing = [name for name in names if not (model_dir / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{model_dir}: {len(missing)} of {len(names)} shards that {INDEX_NAME} names are missing: "
                f"{', '.join(missing[:3])}; copy the checkpoint again"
            )
        return [model_dir / name for name in names]
    shards = sorted(model_dir.glob("*.safetensors"))
    if not shards:
        raise CheckpointError(
            f"{model_dir}: no *.safetensors file; nestedfp loads safetensors only (convert other formats first)"
        )
    return shards


def read_header(shard: Path) -> dict[str, dict[str, Any]]:
    """Read and check the header of one safetensors file; return ``{tensor name: {"dtype", "shape", "data_offsets"}}``.

    Raises:
        CheckpointError: when the file is truncated, too long, or not a safetensors file.
    """
    size = shard.stat().st_size
    with shard.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(f"{shard}: {size} bytes is too short for a safetensors file; copy it again")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{shard}: the header claims {header_bytes} bytes, the file has {size}; it is truncated or not a "
                "safetensors file; copy it again"
            )
        raw = file.read(header_bytes)
    try:
        header: dict[str, dict[str, Any]] = json.loads(raw)
        header.pop("__metadata__", None)
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{shard}: damaged safetensors header ({error!r}); copy it again") from None
    if 8 + header_bytes + end != size:
        raise CheckpointError(
            f"{shard}: expected {8 + header_bytes + end} bytes by its header, found {size}; the file is truncated or "
            "was overwritten; copy it again"
        )
    return header


def verify_shards(model_dir: Path) -> None:
    """Check that every shard of a checkpoint is whole. Reads headers only, so it takes milliseconds.

    Raises:
        CheckpointError: for the first file that is not.
    """
    for shard in list_shards(model_dir):
        read_header(shard)


def fingerprint(model_dir: Path) -> str:
    """Return a short text that changes when a shard of the checkpoint is replaced (names, sizes, modification times)."""
    digest = hashlib.sha256()
    for shard in list_shards(model_dir):
        stat = shard.stat()
        digest.update(f"{shard.name}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]

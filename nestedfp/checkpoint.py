"""Files of a Hugging Face checkpoint folder: which tensors its safetensors shards hold, and whether index and shards agree.

Knows paths, file headers and names, not the bits of the NestedFP format. Needs neither torch nor vLLM, and reads no weight.
A safetensors file is: u64 little-endian header length, JSON header ``{name: {"dtype", "shape", "data_offsets"}}``, data.
"""

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

INDEX_NAME = "model.safetensors.index.json"
PLANES = (".weight_upper", ".weight_lower")  # of a nested layer, beside which there is no ``.weight``
NAMED = 3  # tensors or files that a message names
FLOATS = ("F16", "BF16", "F32", "F64")  # types that weights are loaded from
OTHERS = ("BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64")  # of tensors that are no weights
DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message names the file, what was expected and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a checkpoint, as the header of its shard describes it."""

    shard: Path
    dtype: str  # safetensors' name: "F16", "BF16", "U8", ...
    shape: tuple[int, ...]
    begin: int  # of its first byte in the shard
    nbytes: int


def listed(names: Iterable[str]) -> str:
    """Return the first names and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - NAMED
    return ", ".join(ordered[:NAMED]) + (f" and {more} more" if more > 0 else "")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        CheckpointError: when it does not.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: expected JSON in UTF-8 without a byte order mark ({_said(error)}); save or copy the file again"
        ) from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(found).__name__}; copy the file again")
    return found


def read_config(model_dir: Path) -> dict[str, Any]:
    """Read a checkpoint's config.json.

    Raises:
        CheckpointError: when there is none, or none that can be read; for a ``quantization_config`` that is no object.
    """
    path = model_dir / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{model_dir}: no config.json; expected a Hugging Face checkpoint folder")
    config = read_object(path)
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict | None):
        raise CheckpointError(
            f'{path}: quantization_config is {quantization!r}, expected an object such as {{"quant_method": "nestedfp"}}; '
            "copy the file again"
        )
    return config


def list_shards(model_dir: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder, sorted.

    Raises:
        CheckpointError: when there are none, when one that the index names is missing, or when it names one elsewhere.
    """
    if (model_dir / INDEX_NAME).is_file():
        names = sorted(set(_weight_map(model_dir / INDEX_NAME).values()))
        missing = [name for name in names if not (model_dir / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{model_dir}: {len(missing)} of {len(names)} shards that {INDEX_NAME} names are missing: "
                f"{listed(missing)}; copy the checkpoint again"
            )
        return [model_dir / name for name in names]
    shards = sorted(model_dir.glob("*.safetensors"))
    if not shards:
        raise CheckpointError(
            f"{model_dir}: no *.safetensors file; nestedfp loads safetensors only (convert other formats first)"
        )
    return shards


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index}: not a safetensors index: expected weight_map, an object of tensors and their shards; copy the "
            "checkpoint again"
        )
    for tensor, shard in weight_map.items():
        # vLLM looks for shards beside the index alone, and what is outside the folder is none of its business.
        if not isinstance(shard, str) or PurePosixPath(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: {tensor} is said to be in {shard!r}, expected the name of a *.safetensors file beside the index; "
                "put all shards into one folder and correct the index"
            )
    return weight_map


def read_header(shard: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str], int]:
    """Read and check the header of one safetensors file.

    Returns:
        ``{tensor name: {"dtype", "shape", "data_offsets"}}``, the file's metadata, and where its data begin, in bytes.

    Raises:
        CheckpointError: when the file is truncated, too long, or not a safetensors file.
    """
    try:
        with safe_open(shard, "numpy"):
            pass  # it looks through the header and the size
    except SafetensorError as error:
        raise CheckpointError(f"{shard}: damaged safetensors file ({_said(error)}); copy it again") from None
    with shard.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header: dict[str, dict[str, Any]] = json.loads(file.read(header_bytes))
    metadata = header.pop("__metadata__", None) or {}
    return header, metadata, 8 + header_bytes


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def read_tensors(model_dir: Path) -> dict[str, Stored]:
    """Compare the index of a checkpoint with its shards; return every tensor by name.

    Reads headers only, so it takes milliseconds.

    Raises:
        CheckpointError: for a shard that is not whole, a tensor that two shards hold, one that is not where the index says, or
            half of a nested layer's planes.
    """
    found: dict[str, Stored] = {}
    for shard in list_shards(model_dir):
        header, _metadata, data = read_header(shard)
        for name, entry in header.items():
            if name in found:
                raise CheckpointError(
                    f"{model_dir}: {name} is in two shards, {found[name].shard.name} and {shard.name}; remove the one that does "
                    "not belong to the checkpoint"
                )
            first, last = entry["data_offsets"]
            found[name] = Stored(shard, entry["dtype"], tuple(entry["shape"]), data + first, last - first)
    if (index := model_dir / INDEX_NAME).is_file():
        places = {name: stored.shard.name for name, stored in found.items()}
        if lost := [name for name, shard in _weight_map(index).items() if places.get(name) != shard]:
            raise CheckpointError(
                f"{index}: {len(lost)} tensors are not in the shards that it names for them: {listed(lost)}; copy the checkpoint "
                "again"
            )
    _require_pairs(model_dir, found)
    return found


def read_weights(model_dir: Path) -> dict[str, Stored]:
    """Do as ``read_tensors``, and refuse quantised tensors of a checkpoint whose config.json does not speak of them.

    vLLM would take their codes for values.

    Raises:
        CheckpointError: for these, too.
    """
    tensors = read_tensors(model_dir)
    config = read_config(model_dir) if (model_dir / "config.json").is_file() else {}
    if (config.get("quantization_config") or {}).get("quant_method", "nestedfp") != "nestedfp":
        return tensors
    for name, stored in tensors.items():
        is_weight = name.endswith(".weight") and len(stored.shape) == 2
        if stored.dtype not in (FLOATS if is_weight else FLOATS + OTHERS):
            raise CheckpointError(
                f"{stored.shard}: {name} is {stored.dtype}, expected one of {', '.join(FLOATS)}: it is quantised; take the "
                "original FP16 or BF16 checkpoint"
            )
    return tensors


def _require_pairs(model_dir: Path, found: dict[str, Stored]) -> None:
    for name, stored in found.items():
        for ending, other in (PLANES, PLANES[::-1]):
            if not name.endswith(ending):
                continue
            stem = name.removesuffix(ending)
            twin = found.get(stem + other)
            if twin is None or (twin.dtype, twin.shape) != ("U8", stored.shape) or f"{stem}.weight" in found:
                raise CheckpointError(
                    f"{model_dir}: {name} is half of a nested layer: expected {stem + other} of the same shape, U8, and no "
                    f"{stem}.weight beside it; convert the original checkpoint again with nestedfp convert"
                )


def fingerprint(model_dir: Path) -> str:
    """Return a short text that changes when a shard of the checkpoint is replaced (names, sizes, modification times)."""
    digest = hashlib.sha256()
    for shard in list_shards(model_dir):
        stat = shard.stat()
        digest.update(f"{shard.name}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]

"""The header of a safetensors file, as the safetensors library writes it; who writes the file never holds it whole in memory."""

import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any

from nestedfp.checkpoint import DTYPE_BYTES

# The library sorts tensors by type, these first, so that each is aligned, then by name.
_ORDER = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E8M0", "F8_E4M3", "F8_E5M2")
DIGEST_KEY = "nestedfp_restored_sha256"  # of a converted shard's metadata: of the plain shard's data


def in_file_order(dtypes: Mapping[str, str]) -> list[str]:
    """Return names of tensors in the order in which the safetensors library stores them."""
    rank = {dtype: place for place, dtype in enumerate((*_ORDER, "I8", "U8", "BOOL"))}
    return sorted(dtypes, key=lambda name: (rank.get(dtypes[name], len(rank)), name))


def header_of(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file with these tensors, type and shape by name, and where in the file each begins."""
    entries: dict[str, Any] = {}
    places, end = {}, 0
    for name in in_file_order({name: dtype for name, (dtype, _) in tensors.items()}):
        dtype, shape = tensors[name]
        places[name], end = end, end + DTYPE_BYTES[dtype] * prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [places[name], end]}
    head = {"__metadata__": metadata} if metadata else {}
    raw = json.dumps({**head, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw, {name: 8 + len(raw) + begin for name, begin in places.items()}

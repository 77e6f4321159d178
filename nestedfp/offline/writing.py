"""A safetensors file written piece by piece: as the safetensors library writes it, but never whole in memory."""

import json
import os
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from math import prod
from pathlib import Path
from types import TracebackType

from nestedfp.checkpoint import DTYPE_BYTES

# The library sorts tensors by type, these first, so that each is aligned, then by name.
_ORDER = ("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E8M0", "F8_E4M3", "F8_E5M2")
DIGEST_KEY = "nestedfp_restored_sha256"  # of a converted shard's metadata: of the plain shard's data


def in_file_order(dtypes: Mapping[str, str]) -> list[str]:
    """Return names of tensors in the order in which the safetensors library stores them."""
    rank = {dtype: place for place, dtype in enumerate((*_ORDER, "I8", "U8", "BOOL"))}
    return sorted(dtypes, key=lambda name: (rank.get(dtypes[name], len(rank)), name))


class ShardWriter:
    """Writes one file under ``path`` once all of it is on the disk; a context manager.

    Args:
        path: the file; ``path.tmp`` until it is whole.
        tensors: type and shape of each, by name.
        metadata: of the header. A digest of 64 characters may be put in its place at the end.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]
    ) -> None:
        self.path, self._metadata, self._tensors = path, metadata, tensors
        self._offsets: dict[str, int] = {}
        self._end = 0
        for name in in_file_order({name: dtype for name, (dtype, _) in tensors.items()}):
            dtype, shape = tensors[name]
            self._offsets[name] = self._end
            self._end += DTYPE_BYTES[dtype] * prod(shape)
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._file = self._temporary.open("wb", buffering=0)
        self._data = len(self._header())
        self._digest = sha256()
        self._pool = ThreadPoolExecutor(1)
        self._busy: list[Future[None]] = []

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        self._file.close()
        if kind is not None:
            self._temporary.unlink(missing_ok=True)

    def write(self, pieces: Iterable[tuple[str, int, memoryview]], plain: memoryview) -> None:
        """Write bytes of tensors, each from an offset in bytes on, behind what was given before.

        Args:
            pieces: name, offset, bytes.
            plain: the bytes that the plain checkpoint has for them; the digest is of all of these in order.
        """
        self._wait()
        self._busy = [
            self._pool.submit(self._put, self._data + self._offsets[name] + at, data) for name, at, data in pieces
        ]
        self._digest.update(plain)

    def finish(self) -> str:
        """Put the file under its name; return the digest of all ``plain`` in hexadecimal digits."""
        self._wait()
        digest = self._digest.hexdigest()
        if DIGEST_KEY in self._metadata:
            self._metadata[DIGEST_KEY] = digest
        self._put(0, memoryview(self._header()))
        os.ftruncate(self._file.fileno(), self._data + self._end)
        os.fsync(self._file.fileno())
        self._temporary.rename(self.path)
        return digest

    def _wait(self) -> None:
        for each in self._busy:
            each.result()

    def _put(self, at: int, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written

    def _header(self) -> bytes:
        entries = {
            name: {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [begin, begin + DTYPE_BYTES[dtype] * prod(shape)],
            }
            for name, begin in self._offsets.items()
            for dtype, shape in [self._tensors[name]]
        }
        head = {"__metadata__": self._metadata} if self._metadata else {}
        raw = json.dumps({**head, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
        raw += b" " * (-len(raw) % 8)
        return struct.pack("<Q", len(raw)) + raw

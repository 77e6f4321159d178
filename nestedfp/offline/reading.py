"""The values of a checkpoint in chunks: memory is bounded whatever a shard's size."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch

from nestedfp.checkpoint import FLOATS, PLANES, CheckpointError, Stored
from nestedfp.offline.profile import Profile, Tally

# Constants that old checkpoints carry, some of them -1e9; no model class loads them.
BUFFERS = (".masked_bias", ".attn.bias", ".inv_freq", ".cos_cached", ".sin_cached")
CHUNK_ELEMENTS = 8 << 20
TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "U8": torch.uint8}
Progress = Callable[[int], object]  # is told of bytes as they are done


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor as a plain checkpoint has it: stored as it is, or as two planes."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Stored, ...]  # itself, or the upper and the lower plane

    @property
    def elements(self) -> int:
        """How many there are."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its size in a shard, both planes together."""
        return sum(part.nbytes for part in self.parts)

    @property
    def shard(self) -> Path:
        """The file that holds it."""
        return self.parts[0].shard


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements of a weight from ``first`` on."""

    name: str
    first: int
    parts: tuple[torch.Tensor, ...]  # 1-D, one for each of the weight's; bytes where the type is not one of TORCH


def weights_of(tensors: Mapping[str, Stored]) -> dict[str, Weight]:
    """Return the tensors of a checkpoint by the names that they have in a plain one."""
    found = {}
    for name, stored in tensors.items():
        if name.endswith(PLANES[1]):
            continue
        if name.endswith(PLANES[0]):
            stem = name.removesuffix(PLANES[0])
            found[f"{stem}.weight"] = Weight("F16", stored.shape, (stored, tensors[stem + PLANES[1]]))
        else:
            found[name] = Weight(stored.dtype, stored.shape, (stored,))
    return found


def chunks(weights: Mapping[str, Weight], names: Iterable[str]) -> Iterator[Chunk]:
    """Yield the values of tensors in order; of an empty tensor nothing.

    Raises:
        CheckpointError: a shard has become shorter.
        OSError: it cannot be read.
    """
    for name in names:
        weight = weights[name]
        for first in range(0, weight.elements, CHUNK_ELEMENTS):
            count, parts = min(CHUNK_ELEMENTS, weight.elements - first), []
            for part in weight.parts:
                each = part.nbytes // weight.elements
                data = np.fromfile(part.shard, np.uint8, count * each, offset=part.begin + first * each)
                if len(data) < count * each:
                    raise CheckpointError(f"{part.shard}: {name}: the file ends within it; copy it again")
                parts.append(torch.from_numpy(data).view(TORCH.get(part.dtype, torch.uint8)))
            yield Chunk(name, first, tuple(parts))


def profiles(weights: Mapping[str, Weight], progress: Progress) -> dict[str, Profile]:
    """Read every weight once; return the statistics of each. Integers and buffers are no weights."""
    from nestedfp.kernels import ops

    names = [name for name, weight in weights.items() if weight.dtype in FLOATS and not name.endswith(BUFFERS)]
    tallies = {name: Tally(TORCH[weights[name].dtype]) for name in names}
    for chunk in chunks(weights, names):
        tally = tallies[chunk.name]
        parts = [part.view(1, -1) for part in chunk.parts]
        tally.add(parts[0] if len(parts) == 1 else ops.join(*parts))
        progress(sum(part.nbytes for part in parts))
    return {name: tally.profile() for name, tally in tallies.items()}

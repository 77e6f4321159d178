"""The weights of a checkpoint, plain or as planes, and their values, a tensor at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch

from nestedfp.checkpoint import FLOATS, PLANES, CheckpointError, Stored
from nestedfp.offline.profile import Profile, profile_of

TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "U8": torch.uint8}
# Constants that old checkpoints carry, some of them -1e9; no model class loads them.
BUFFERS = (".masked_bias", ".attn.bias", ".inv_freq", ".cos_cached", ".sin_cached")
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


def read(name: str, weight: Weight) -> list[torch.Tensor]:
    """Return each part's values, [1, elements]; bytes where the type is not one of TORCH.

    Raises:
        CheckpointError: a shard has become shorter.
        OSError: it cannot be read.
    """
    parts = []
    for part in weight.parts:
        data = np.fromfile(part.shard, np.uint8, part.nbytes, offset=part.begin)
        if data.nbytes < part.nbytes:
            raise CheckpointError(f"{part.shard}: {name}: the file ends within it; copy it again")
        parts.append(torch.from_numpy(data).view(TORCH.get(part.dtype, torch.uint8)).view(1, -1))
    return parts


def profiles(weights: Mapping[str, Weight], progress: Progress) -> dict[str, Profile]:
    """Read every weight once; return the statistics of each. Integers and buffers are no weights."""
    from nestedfp.kernels import ops

    found: dict[str, Profile] = {}
    for name, weight in weights.items():
        if weight.dtype in FLOATS and not name.endswith(BUFFERS):
            parts = read(name, weight)
            found[name] = profile_of(parts[0] if len(parts) == 1 else ops.join(*parts))
            progress(weight.nbytes)
    return found

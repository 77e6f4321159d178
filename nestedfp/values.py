"""Which tensors hold a NaN, an infinity, or a value that FP16 cannot: one pass over each, a chunk at a time, on its own device."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from safetensors import SafetensorError, safe_open

from nestedfp.cast import cast_report
from nestedfp.checkpoint import FLOATS, CheckpointError, Stored

CHUNK_ELEMENTS = 1 << 20  # on a CPU, so that what is compared stays in its cache
GPU_CHUNK_ELEMENTS = 1 << 26
# Integers of the bits of the least magnitude that is infinite, or a NaN, in the type itself and after a cast to FP16.
_BITS = {
    torch.float16: (torch.int16, 0x7C00, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80, 0x4780),
    torch.float32: (torch.int32, 0x7F800000, 0x477FF000),
}
# Constants that old checkpoints carry, some of them -1e9; no model class loads them.
BUFFERS = (".masked_bias", ".attn.bias", ".inv_freq", ".cos_cached", ".sin_cached")


def is_finite(tensor: torch.Tensor, *, as_fp16: bool) -> bool:
    """Whether all values are finite; a tensor of integers is.

    Args:
        tensor: any shape and device.
        as_fp16: after a cast to FP16; False: as they are.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    if tensor.dtype not in _BITS:
        return bool((tensor.to(torch.float16) if as_fp16 else tensor.float()).isfinite().all())
    integer, own, cast = _BITS[tensor.dtype]
    flat = tensor.detach().reshape(-1).view(integer)
    largest = [
        (part & torch.iinfo(integer).max).max()
        for part in torch.split(flat, CHUNK_ELEMENTS if flat.device.type == "cpu" else GPU_CHUNK_ELEMENTS)
    ]
    return int(torch.stack(largest).max()) < (cast if as_fp16 else own)


def fault(tensor: torch.Tensor, *, as_fp16: bool = True) -> str | None:
    """Say how many values are NaN, infinite or beyond FP16's range; None: no one is."""
    if is_finite(tensor, as_fp16=as_fp16):
        return None
    if tensor.dtype.itemsize == 1:
        return "holds NaN"
    counts = cast_report(tensor)
    if counts.nonfinite:
        return f"{counts.nonfinite} of {counts.total} weights are NaN or infinite"
    return f"{counts.overflowed} values beyond FP16's 65504 overflow in the cast from {tensor.dtype}"


def stream(tensors: Mapping[str, Stored], names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors by name, shard by shard. They are views of the mapped file: no more than a shard's pages are held.

    Raises:
        CheckpointError: when a shard cannot be read.
    """
    wanted: dict[str, list[str]] = {}
    for name in names:
        wanted.setdefault(str(tensors[name].shard), []).append(name)
    for shard, held in wanted.items():
        try:
            with safe_open(shard, framework="pt") as file:
                for name in held:
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{shard}: cannot be read ({error}); copy it again") from None


def faults(tensors: Mapping[str, Stored], *, as_fp16: bool = True) -> dict[str, str]:
    """Read every weight of a checkpoint; return ``fault`` of those that have one."""
    names = [name for name, stored in tensors.items() if stored.dtype in FLOATS and not name.endswith(BUFFERS)]
    return {
        name: found for name, tensor in stream(tensors, names) if (found := fault(tensor, as_fp16=as_fp16)) is not None
    }

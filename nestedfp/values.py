"""Which tensors hold a NaN, an infinity, or a value that FP16 cannot: one pass over each, a chunk at a time, on its own device."""

import torch

from nestedfp.cast import cast_report

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

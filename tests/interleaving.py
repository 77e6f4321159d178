"""The order in which the grouped products of experts read activations."""

import torch


def interleaved(a: torch.Tensor) -> torch.Tensor:
    """Return activations [rows, k] float16, contiguous in k, each 64 of k in the order in which the kernel has the weights."""
    pairs = a.view(torch.int32).view(len(a), -1, 4, 4, 2)  # thread, step, half
    return pairs.permute(0, 1, 3, 4, 2).reshape(len(a), -1).view(a.dtype)

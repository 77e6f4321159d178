"""Kernels of experts (MoE) in Triton, the call of the grouped CUDA kernel, and which tiles either takes."""

"""Experts of a mixture as stacks of planes: the quantisation method, and its kernels on a CPU and on a GPU."""

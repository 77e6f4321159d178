"""Kernels against the libraries, on one GPU."""

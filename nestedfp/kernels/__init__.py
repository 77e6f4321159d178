"""The operators, on a CPU and a GPU, and the choice of GEMM configs."""

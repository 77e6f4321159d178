"""What the choice of GEMM configs is fitted to and tuned by."""

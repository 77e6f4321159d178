"""Builds and configs of the GEMM in windows long enough to meet the power cap, or in bursts beside decodes."""

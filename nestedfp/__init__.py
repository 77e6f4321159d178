"""NestedFP: 16-bit weights stored once as two byte planes, run as exact FP16 or as FP8.

Importing this package costs nothing: torch, vLLM and the compiled kernels are imported by the modules that need them.
"""

__version__ = "0.1.0"

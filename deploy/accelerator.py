"""Finds out what the engines run on."""

from pathlib import Path


def resolve(wanted: str) -> str:
    """Return ``"cpu"`` or ``"gpu"``; ``"auto"`` takes the GPU if the NVIDIA driver shows one on this machine."""
    if wanted != "auto":
        return wanted
    return "gpu" if any(Path("/proc/driver/nvidia/gpus").glob("*")) or Path("/dev/nvidia0").exists() else "cpu"

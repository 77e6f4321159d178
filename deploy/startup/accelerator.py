"""Finds out what the engines run on."""

import os
import re
from pathlib import Path


def resolve(wanted: str) -> str:
    """Return ``"cpu"`` or ``"gpu"``; ``"auto"`` takes the GPU if the NVIDIA driver shows one on this machine."""
    if wanted != "auto":
        return wanted
    return "gpu" if any(Path("/proc/driver/nvidia/gpus").glob("*")) or Path("/dev/nvidia0").exists() else "cpu"


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs this process may use: device files, less those that CUDA_VISIBLE_DEVICES hides."""
    count = sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in devices.iterdir())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([part for part in visible.split(",") if part.strip()]))

"""LoRA adapters of random weights for the shipped model."""

import json
from pathlib import Path

import torch

from benchmarks.weights import random_adapters

MODEL = Path(__file__).resolve().parents[1] / "models/fairytales-8m"


def matrices(seed: int = 1, rank: int = 4) -> dict[str, torch.Tensor]:
    return random_adapters.matrices(json.loads((MODEL / "config.json").read_text()), seed, rank)


def save(folder: Path, tensors: dict[str, torch.Tensor] | None = None, rank: int = 4) -> str:
    """Write an adapter; return the folder."""
    return random_adapters.save(folder, matrices(rank=rank) if tensors is None else tensors, rank)

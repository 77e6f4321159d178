"""The portable GEMM's own sources on a CPU (emulated.py)."""

import struct
from dataclasses import dataclass

import emulated
import numpy as np
import torch
from emulated import COLUMNS

EXACT, UPPER_FP16, FP8 = range(3)  # PortableOperands of csrc/cuda/portable/tile.h


def build(program, *flags, **where):
    """Compile the emulator with the kernel's sources."""
    return emulated.build(program, "portable_gemm.cpp", ["cuda/portable/plan.cpp"], *flags, **where)


@dataclass(frozen=True)
class Problem:
    """Operands of one product; codes are E4M3 as uint8 [m, k], and ``x`` is then None."""

    upper: torch.Tensor
    lower: torch.Tensor
    x: torch.Tensor | None = None
    codes: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    def run(self, program, operands, tile=0, split=0, multiprocessors=4, seed=0):
        """Return ``(exit status, standard error, result [m, n] FP16)``; split 0: tile and split as the product chooses."""
        n, k = self.upper.shape
        if operands == FP8:
            m, pitch = len(self.codes), -(-k // 64) * 64
            padded = torch.zeros(m, pitch, dtype=torch.uint8)
            padded[:, :k] = self.codes
            x = padded.view(m, -1, 64)[:, :, COLUMNS].numpy().tobytes() + self.scale.float().numpy().tobytes()
        else:
            m, pitch = len(self.x), -(-k // 8) * 8
            padded = torch.full((m, pitch), torch.nan, dtype=torch.float16)  # between rows: never to be read
            padded[:, :k] = self.x
            x = padded.numpy().tobytes()[: ((m - 1) * pitch + k) * 2]
        given = struct.pack("9q", operands, tile, split, m, n, k, pitch, multiprocessors, seed) + x
        given += self.upper.numpy().tobytes() + self.lower.numpy().tobytes() + bytes([self.bias is not None])
        given += b"" if self.bias is None else self.bias.numpy().tobytes()
        ended = emulated.run(program, given)
        result = np.frombuffer(ended.stdout, dtype=np.float16).copy()
        return ended.returncode, ended.stderr.decode(), torch.from_numpy(result).view(-1, n)

"""The portable GEMM's own sources on a CPU: tests/emulator runs its threads and executes its instructions."""

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gemm_library import CSRC

EMULATOR = Path(__file__).parent / "emulator"
EXACT, UPPER_FP16, FP8 = range(3)  # PortableOperands of csrc/cuda/portable/tile.h
SANITIZERS = "-fsanitize=address,undefined"

# csrc/cuda/kernels/layout.h: the column, within its 64, of the byte at each position.
COLUMNS = [16 * (p // 4 % 4) + 2 * (p // 16) + (p & 1) * 8 + (p % 4 >> 1) for p in range(64)]


def build(program, csrc=CSRC, *flags):
    """Compile the emulator with the kernel's sources in ``csrc``."""
    sources = (*sorted(EMULATOR.glob("*.cpp")), csrc / "cuda/portable/plan.cpp")
    # The pragmas are nvcc's.
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", *flags]
    subprocess.run(["c++", *flags, "-o", program, f"-I{EMULATOR}", f"-I{csrc}", *sources], check=True)
    return program


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
        ended = subprocess.run([program], input=given, capture_output=True, check=False, timeout=120)
        result = np.frombuffer(ended.stdout, dtype=np.float16).copy()
        return ended.returncode, ended.stderr.decode(), torch.from_numpy(result).view(-1, n)

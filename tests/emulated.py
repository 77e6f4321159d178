"""GPU kernels on a CPU: programs made of tests/emulator, which runs a kernel's threads, and of the kernel's own sources."""

import os
import subprocess
from pathlib import Path

from gemm_library import CSRC

EMULATOR = Path(__file__).parent / "emulator"
SANITIZERS = ("-fsanitize=address,undefined", "-g")

# csrc/cuda/kernels/layout.h: the column, within its 64, of the byte at each position.
COLUMNS = [16 * (p // 4 % 4) + 2 * (p // 16) + (p & 1) * 8 + (p % 4 >> 1) for p in range(64)]


def run(program, given):
    """Run a program on these bytes. vLLM, once imported, preloads libraries that sanitizers do not suffer before them."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([program], input=given, capture_output=True, check=False, timeout=120, env=env)


def build(program, main, sources, *flags, csrc=CSRC):
    """Compile ``main``, a file of the emulator, with ``sources``, names of files in ``csrc``."""
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
    flags += ["-Wno-unknown-pragmas"]  # nvcc's
    files = [EMULATOR / main, EMULATOR / "grid.cpp", "-x", "c++", *(csrc / source for source in sources)]
    subprocess.run(["c++", *flags, "-o", program, f"-I{EMULATOR}", f"-I{csrc}", *files], check=True)
    return program

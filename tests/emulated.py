"""GPU kernels on a CPU: programs made of tests/emulator, which runs a kernel's threads, and of the kernel's own sources."""

import os
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from gemm_library import CSRC

EMULATOR = Path(__file__).parent / "emulator"
GRID = (EMULATOR / "grid.cpp", EMULATOR / "calls.cpp")
SANITIZERS = ("-fsanitize=address,undefined", "-g1")
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")  # nvcc's pragmas

# csrc/cuda/kernels/layout.h: the column, within its 64, of the byte at each position.
COLUMNS = [16 * (p // 4 % 4) + 2 * (p // 16) + (p & 1) * 8 + (p % 4 >> 1) for p in range(64)]


def run(program, given):
    """Run a program on these bytes. vLLM, once imported, preloads libraries that sanitizers do not suffer before them."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([program], input=given, capture_output=True, check=False, timeout=120, env=env)


def run_gemm(program, problem, *head):
    """Run a GEMM on a problem (gemm_problems.py) and return ``(exit status, standard error, result [m, n] FP16)``.

    ``head``: the integers that the program reads first, with None in the place of m, n, k and x's pitch.
    """
    n, k = problem.upper.shape
    if problem.codes is not None:
        m, pitch = len(problem.codes), -(-k // 64) * 64
        padded = torch.zeros(m, pitch, dtype=torch.uint8)
        padded[:, :k] = problem.codes
        x = padded.view(m, -1, 64)[:, :, COLUMNS].numpy().tobytes() + problem.scale.float().numpy().tobytes()
    else:
        m, pitch = len(problem.x), -(-k // 8) * 8
        padded = torch.full((m, pitch), torch.nan, dtype=torch.float16)  # between rows: never to be read
        padded[:, :k] = problem.x
        x = padded.numpy().tobytes()[: ((m - 1) * pitch + k) * 2]
    sizes = head.index(None)
    integers = (*head[:sizes], m, n, k, pitch, *head[sizes + 1 :])
    given = struct.pack(f"{len(integers)}q", *integers) + x
    given += problem.upper.numpy().tobytes() + problem.lower.numpy().tobytes() + bytes([problem.bias is not None])
    given += b"" if problem.bias is None else problem.bias.numpy().tobytes()
    rows, cols, deltas = problem.outliers or (torch.empty(0),) * 3
    given += struct.pack("q", len(rows)) + rows.int().numpy().tobytes() + cols.int().numpy().tobytes()
    given += deltas.float().numpy().tobytes()
    ended = run(program, given)
    result = np.frombuffer(ended.stdout, dtype=np.float16).copy()
    return ended.returncode, ended.stderr.decode(), torch.from_numpy(result).view(-1, n)


def compile_objects(sources, folder, *flags, csrc=CSRC):
    """Compile files as C++ into ``folder``, as many at a time as there are cores, and return the objects."""
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(source):
        made = folder / f"{source.name}.o"
        command = ["c++", *FLAGS, *flags, f"-I{EMULATOR}", f"-I{csrc}", "-x", "c++", "-c", source, "-o", made]
        subprocess.run(command, check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sources))


def build(program, main, sources, *flags, csrc=CSRC):
    """Compile ``main``, a file of the emulator, with ``sources``, names of files in ``csrc``."""
    files = [EMULATOR / main, *GRID, *(csrc / source for source in sources)]
    objects = compile_objects(files, program.with_suffix(".objects"), *flags, csrc=csrc)
    subprocess.run(["c++", *flags, *objects, "-o", program], check=True)
    return program

"""The Hopper GEMM's own sources on a CPU (emulated.py): every tile, and builds in which one tile has another source."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import emulated
from gemm_library import CSRC

HOST = ("host/launch.cpp", "host/semaphores.cpp")
UNSIGNED_INDEX = "-Wno-sign-compare"  # threadIdx is compared with int


@dataclass(frozen=True)
class Tile:
    """One line of csrc/cuda/tiles.inc."""

    arguments: str
    is_fp8: bool
    row_warpgroups: int
    k_warpgroups: int
    tokens: int
    blocks: int
    multicast: int

    @property
    def rows(self):
        return 64 * self.row_warpgroups * self.multicast

    @property
    def step(self):
        """Columns of K that a stage holds."""
        return (128 if self.is_fp8 else 64) * self.k_warpgroups


TILES = [  # by their numbers
    Tile(arguments, name == "Fp8", *map(int, rest.split(", ")))
    for arguments, name, rest in re.findall(
        r"^NESTEDFP_TILE\((k(\w+), (.*))\)", (CSRC / "cuda/tiles.inc").read_text(), re.MULTILINE
    )
]

NO_CONFIG = 4  # exit status


def run(program, problem, tile, split=1, tail=False, workspace=False, neutral=False, multiprocessors=3, seed=0):
    """Return ``(exit status, standard error, result [m, n] FP16)``."""
    head = TILES[tile].is_fp8, tile, split, tail, workspace, neutral, None, multiprocessors, seed
    return emulated.run_gemm(program, problem, *head)


def generate(folder, *tiles):
    """Write the files that compile all tiles, or these."""
    command = [sys.executable, CSRC / "cuda/generate_tiles.py", folder, *map(str, tiles)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [Path(line) for line in done.stdout.splitlines()]


class Build:
    """Programs of all tiles, and others that have another kernel in the place of one of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        sources = [*generate(folder / "tiles"), *(CSRC / "cuda" / name for name in HOST)]
        sources += (CSRC / "cuda/config").glob("*.cpp")
        sources += [*emulated.GRID, emulated.EMULATOR / "hopper.cpp"]
        self.objects = emulated.compile_objects(sources, folder / "objects", UNSIGNED_INDEX)
        mains = [emulated.EMULATOR / name for name in ("hopper_gemm.cpp", "mixed_gemm.cpp", "experts_gemm.cpp")]
        self.main, mixed, experts = emulated.compile_objects(mains, folder / "mains", UNSIGNED_INDEX)
        self.program, self.mixed = self.link("gemm", self.main), self.link("mixed", mixed)
        self.experts = self.link("experts", experts)

    def link(self, name, *objects):
        """Of a function that several objects hold the first one counts."""
        program = self.folder / f"{name}.program"
        subprocess.run(["c++", *objects, *self.objects, "-o", program], check=True)
        return program

    def with_tile(self, name, tile, csrc):
        """A program in which the kernel of ``tile`` is made of the sources in ``csrc``."""
        folder = self.folder / name
        objects = emulated.compile_objects(generate(folder, tile), folder, UNSIGNED_INDEX, csrc=csrc)
        return self.link(name, self.main, *objects)

"""Counts the instructions of each kernel's main loop in the machine code that nvcc makes of a source: no GPU.

    python -m benchmarks.kernels.sass_loops csrc/cuda/portable/launch.cu --arch 89
    python -m benchmarks.kernels.sass_loops --tiles 12,48

The main loop is the innermost one with the most tensor-core products in it. ``--tiles``: of the Hopper GEMM, by their numbers in
csrc/cuda/tiles.inc. CSV: kernel,arch,products,instructions,uniform; uniform instructions compute once for a whole warp. Needs
nvcc, and cuobjdump from the CUDA toolkit or from Triton's wheel.
"""

import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parents[2] / "csrc"
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);")
BRANCH = re.compile(r"\bBRA\b.*?(0x[0-9a-f]+)")
UNIFORM = re.compile(r"(@!?U?P\w+ +)?U[A-Z]")
OLDEST_FP8 = 89  # of csrc/cuda/CMakeLists.txt: the PTX that newer GPUs are given


class MainLoop(NamedTuple):
    """A kernel's main loop."""

    kernel: str
    products: int
    instructions: int
    uniform: int


def main_loops(sass: str) -> Iterator[MainLoop]:
    """Yield the main loop of every kernel in what ``cuobjdump -sass`` prints; kernels without products have none."""
    for text in sass.split("Function : ")[1:]:
        code = [(int(address, 16), words) for address, words in INSTRUCTION.findall(text)]
        place = {address: number for number, (address, _) in enumerate(code)}
        loops = []
        for end, (_, words) in enumerate(code):
            found = BRANCH.search(words)
            begin = place.get(int(found[1], 16), end) if found else end
            if begin < end:
                loop = [each for _, each in code[begin : end + 1]]
                uniform = sum(UNIFORM.match(each) is not None for each in loop)
                loops.append((sum("MMA" in each for each in loop), -len(loop), uniform))
        if loops and max(loops)[0]:
            products, shortest, uniform = max(loops)  # of several with as many products the shortest
            yield MainLoop(text.split(None, 1)[0], products, -shortest, uniform)


def instantiate(tiles: list[str], folder: Path) -> list[Path]:
    """Write sources of these tiles of the Hopper GEMM, and what they include, into ``folder``.

    Raises:
        RuntimeError: when there is no such tile.
    """
    command = [sys.executable, str(SOURCES / "cuda/generate_tiles.py"), str(folder / "tiles"), *tiles]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return [Path(line) for line in done.stdout.splitlines()]


def disassemble(source: Path, arch: int) -> str:
    """Compile a source as the library's PTX for ``arch`` (90: as its code for Hopper) and disassemble it.

    Raises:
        RuntimeError: when nvcc or cuobjdump is missing or fails, with what it said.
    """
    triton = find_spec("triton")
    wheel = (
        [Path(place) / "backends/nvidia/bin/cuobjdump" for place in (triton.submodule_search_locations or [])]
        if triton
        else []
    )
    tools = [shutil.which("cuobjdump"), *(str(path) for path in wheel if path.exists())]
    cuobjdump = next((tool for tool in tools if tool), None)
    nvcc = shutil.which("nvcc")
    if nvcc is None or cuobjdump is None:
        raise RuntimeError("need nvcc (CUDA 12.8 or newer) and cuobjdump (the CUDA toolkit's, or Triton's wheel)")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        if arch == 90:
            target = ["-arch=sm_90a"]
        else:
            target = [f"-arch=compute_{OLDEST_FP8 if arch >= OLDEST_FP8 else 80}", f"-code=sm_{arch}"]
        places = [f"-I{SOURCES}", f"-I{source.parents[1]}"]  # the second: of generated sources
        command = [nvcc, "-std=c++17", *target, *places, "-cubin", "-o", str(cubin), str(source)]
        for words in (command, [cuobjdump, "-sass", str(cubin)]):
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{words[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--arch", type=int, default=89, help="80, 86, 89, 90, 100, 120 (%(default)s)")
    parser.add_argument("--tiles", type=lambda text: text.split(","))
    args = parser.parse_args()
    if (args.source is None) == (args.tiles is None):
        parser.error("expected a source or --tiles")
    arch = args.arch if args.tiles is None else 90
    try:
        with tempfile.TemporaryDirectory() as folder:
            sources = [args.source.resolve()] if args.tiles is None else instantiate(args.tiles, Path(folder))
            found = sorted(loop for source in sources for loop in main_loops(disassemble(source, arch)))
    except RuntimeError as error:
        print(f"sass_loops: {error}", file=sys.stderr)
        return 2
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["kernel", "arch", "products", "instructions", "uniform"])
    writer.writerows((loop.kernel, arch, loop.products, loop.instructions, loop.uniform) for loop in found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

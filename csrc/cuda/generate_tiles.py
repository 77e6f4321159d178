"""Writes what follows from the list of tiles (tiles.inc): run by CMake, into the build folder.

python csrc/cuda/generate_tiles.py FOLDER [NUMBER ...]

All tiles, or those of these numbers, for whoever looks at a few:

* ``tiles_<i>.cu``: explicit instantiations, a few tiles each, so that they compile in parallel.
* ``wgmma.inc``: a wrapper for every wgmma form that the tiles use.

Prints the .cu files, one a line. A file that would not change is left alone, so that nothing is compiled for nothing.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TILES = Path(__file__).with_name("tiles.inc")
MIXED_TILES = Path(__file__).with_name("mixed_tiles.inc")
TILES_PER_FILE = 4
TOKENS = range(16, 321, 16)  # that the epilogue can store and the registers hold
WGMMA_TOKENS = 256  # N of a wgmma, at most


@dataclass(frozen=True, slots=True)
class Tile:
    """One line of tiles.inc."""

    precision: str  # "kFp16" or "kFp8"
    arguments: str  # of the template: precision first
    tokens: int

    @property
    def instructions(self) -> int:
        """wgmmas that compute all tokens (Tile::instructions in config/tiles.h)."""
        return 2 if self.tokens > WGMMA_TOKENS else 1


def read_tiles(text: str) -> list[Tile]:
    """Parse tiles.inc.

    Raises:
        ValueError: for a line that is neither a comment nor a tile, a tile that stands twice, or a number of tokens
            that wgmma or the epilogue cannot do.
    """
    tiles: list[Tile] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("//"):
            continue
        found = re.fullmatch(r"NESTEDFP_TILE\(((kFp16|kFp8), \d+, \d+, (\d+), \d+, \d+)\)", line)
        if found is None:
            raise ValueError(f"tiles.inc:{number}: expected NESTEDFP_TILE(kFp16 or kFp8, five numbers), got {line!r}")
        tile = Tile(found[2], found[1], int(found[3]))
        if tile.tokens not in TOKENS:
            raise ValueError(f"tiles.inc:{number}: expected tokens a multiple of 16 up to 320, got {tile.tokens}")
        if tile in tiles:
            raise ValueError(f"tiles.inc:{number}: the tile stands above already: {line}")
        tiles.append(tile)
    return tiles


@dataclass(frozen=True, slots=True)
class MixedTile:
    """One line of mixed_tiles.inc: tokens."""

    exact: int
    fast: int
    rest_tokens: int
    multicast_ctas: int


def read_mixed_tiles(text: str) -> list[MixedTile]:
    """Parse mixed_tiles.inc."""
    found = re.findall(r"^NESTEDFP_MIXED_TILE\((\d+), (\d+), (\d+), (\d+)\)$", text, re.MULTILINE)
    return [MixedTile(*map(int, line)) for line in found]


def mixed_instantiations(tiles: list[MixedTile]) -> str:
    """Return a .cu file that compiles ``tiles``."""
    lines = "".join(
        f"NESTEDFP_INSTANTIATE_MIXED({t.exact}, {t.fast}, {t.rest_tokens}, {t.multicast_ctas});\n" for t in tiles
    )
    return f"""\
// Written by csrc/cuda/generate_tiles.py from mixed_tiles.inc.
#include "cuda/host/launch_mixed_tile.cuh"

namespace nestedfp::cuda {{

{lines}
}}  // namespace nestedfp::cuda
"""


def instantiations(tiles: list[Tile]) -> str:
    """Return a .cu file that compiles ``tiles``."""
    lines = "".join(f"NESTEDFP_INSTANTIATE({tile.arguments});\n" for tile in tiles)
    return f"""\
// Written by csrc/cuda/generate_tiles.py from tiles.inc.
#include "cuda/host/launch_tile.cuh"

namespace nestedfp::cuda {{

{lines}
}}  // namespace nestedfp::cuda
"""


@dataclass(frozen=True, slots=True)
class Form:
    """A family of wgmma instructions: everything but the number of tokens, which is N."""

    wrapper: str
    instruction: str
    a_type: str
    a_values: tuple[str, ...]  # asm operands of A
    a_braces: bool  # A is a list of registers
    flags: str  # after the predicate: scales, and transposition where an operand may have one


FORMS = {
    "kFp16": Form(
        "WgmmaHalf",
        "wgmma.mma_async.sync.aligned.m64n{}k16.f32.f16.f16",
        "const uint32_t (&a)[4]",
        tuple(f'"r"(a[{i}])' for i in range(4)),
        True,
        "1, 1, 0",
    ),
    "kFp8": Form(
        "WgmmaE4m3",
        "wgmma.mma_async.sync.aligned.m64n{}k32.f32.e4m3.e4m3",
        "uint64_t a",
        ('"l"(a)',),
        False,
        "1, 1",
    ),
}


def wgmma_wrapper(form: Form, tokens: int) -> str:
    """Return the wrapper of one instruction."""
    count = tokens // 2  # accumulators of a thread
    accumulators = ", ".join(f"%{i}" for i in range(count))
    a = ", ".join(f"%{count + i}" for i in range(len(form.a_values)))
    b = count + len(form.a_values)
    a = f"{{{a}}}" if form.a_braces else a
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    inputs = ", ".join([*form.a_values, '"l"(b)', '"r"(accumulate)'])
    return f"""
template <>
struct {form.wrapper}<{tokens}> {{
    static __device__ __forceinline__ void issue(float* d, {form.a_type}, uint64_t b, int accumulate) {{
        asm volatile(
            "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{b + 1}, 0;\\n"
            "{form.instruction.format(tokens)} {{{accumulators}}}, {a}, %{b}, p, {form.flags};\\n}}\\n"
            : {outputs}
            : {inputs});
    }}
}};
"""


def wgmma(tiles: list[Tile], mixed: list[MixedTile]) -> str:
    """Return wgmma.inc."""
    text = """\
// Written by csrc/cuda/generate_tiles.py from tiles.inc. FP32 accumulators, B (the activations) from shared memory.
//   WgmmaHalf<N>: m64nNk16, A (decoded weights) from registers.
//   WgmmaE4m3<N>: m64nNk32, A (the upper plane) from shared memory.
"""
    for precision, form in FORMS.items():
        text += f"\ntemplate <int N>\nstruct {form.wrapper};\n"
        used = {tile.tokens // tile.instructions for tile in tiles if tile.precision == precision}
        for tile in mixed:
            used |= {tile.exact} if precision == "kFp16" else {tile.fast, tile.rest_tokens}
        text += "".join(wgmma_wrapper(form, tokens) for tokens in sorted(used))
    return text


def generate(folder: Path, numbers: Sequence[int] = ()) -> list[Path]:
    """Write everything, of all tiles or of some, into ``folder`` and return the .cu files.

    Raises:
        ValueError: for what read_tiles refuses, and when there is no tile of a number.
    """
    tiles = read_tiles(TILES.read_text())
    if not all(0 <= number < len(tiles) for number in numbers):
        raise ValueError(f"expected tiles from 0 to {len(tiles) - 1}, got {', '.join(map(str, numbers))}")
    tiles = [tiles[number] for number in numbers] or tiles
    parts = [tiles[i : i + TILES_PER_FILE] for i in range(0, len(tiles), TILES_PER_FILE)]
    sources = {folder / f"tiles_{i:02d}.cu": instantiations(part) for i, part in enumerate(parts)}
    mixed = [] if numbers else read_mixed_tiles(MIXED_TILES.read_text())
    for i in range(0, len(mixed), TILES_PER_FILE):
        sources[folder / f"mixed_tiles_{i // TILES_PER_FILE:02d}.cu"] = mixed_instantiations(
            mixed[i : i + TILES_PER_FILE]
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in {**sources, folder / "wgmma.inc": wgmma(tiles, mixed)}.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for stale in set(folder.glob("*tiles_*.cu")) - set(sources):
        stale.unlink()
    return list(sources)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python csrc/cuda/generate_tiles.py FOLDER [NUMBER ...]")
    try:
        print("\n".join(map(str, generate(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]]))))
    except ValueError as error:
        sys.exit(str(error))

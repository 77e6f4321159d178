"""Writes what follows from the lists of tiles: run by CMake, into the build folder.

python csrc/cuda/generate_tiles.py FOLDER [NUMBER ...]

All tiles, or those of these numbers in tiles.inc, for whoever looks at a few:

* ``tiles_<i>.cu``, ``mixed_tiles_<i>.cu``, ``experts_tiles_<i>.cu``: explicit instantiations, a few tiles each, so that they
  compile in parallel.
* ``wgmma.inc``: a wrapper for every wgmma form that the tiles use.

Prints the .cu files, one a line. A file that would not change is left alone, so that nothing is compiled for nothing.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TILES_PER_FILE = 4
WGMMA_TOKENS = 256  # N of a wgmma, at most


def read(name: str) -> list[str]:
    """Return the arguments of every tile of a list: ``tiles``, ``mixed_tiles`` or ``experts_tiles``."""
    text = Path(__file__).with_name(f"{name}.inc").read_text()
    return re.findall(r"^NESTEDFP_\w*TILE\((.+)\)$", text, re.MULTILINE)


def instantiations(macro: str, tiles: Sequence[str]) -> str:
    """Return a .cu file that compiles ``tiles``."""
    lines = "".join(f"{macro}({tile});\n" for tile in tiles)
    return f"""\
// Written by csrc/cuda/generate_tiles.py.
#include "cuda/host/launch_tile.cuh"

namespace nestedfp::cuda {{

{lines}
}}  // namespace nestedfp::cuda
"""


class Form(NamedTuple):
    """A family of wgmma instructions: everything but the number of tokens, which is N."""

    wrapper: str
    instruction: str
    a_type: str
    a_values: tuple[str, ...]  # asm operands of A, which are a list in braces where they are several
    flags: str  # after the predicate: scales, and transposition where an operand may have one


FORMS = {
    "kFp16": Form(
        "WgmmaHalf",
        "wgmma.mma_async.sync.aligned.m64n{}k16.f32.f16.f16",
        "const uint32_t (&a)[4]",
        tuple(f'"r"(a[{i}])' for i in range(4)),
        "1, 1, 0",
    ),
    "kFp8": Form(
        "WgmmaE4m3", "wgmma.mma_async.sync.aligned.m64n{}k32.f32.e4m3.e4m3", "uint64_t a", ('"l"(a)',), "1, 1"
    ),
}


def wgmma_wrapper(form: Form, tokens: int) -> str:
    """Return the wrapper of one instruction."""
    count = tokens // 2  # accumulators of a thread
    accumulators = ", ".join(f"%{i}" for i in range(count))
    a = ", ".join(f"%{count + i}" for i in range(len(form.a_values)))
    b = count + len(form.a_values)
    a = f"{{{a}}}" if len(form.a_values) > 1 else a
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


def wgmma(tiles: Sequence[str], mixed: Sequence[str], experts: Sequence[str]) -> str:
    """Return wgmma.inc."""
    used: dict[str, set[int]] = {precision: set() for precision in FORMS}
    for tile in tiles:
        precision, _, _, tokens, *_ = tile.split(", ")
        used[precision].add(int(tokens) // (2 if int(tokens) > WGMMA_TOKENS else 1))  # Tile::instructions
    for tile in mixed:
        exact, fast, rest, _ = map(int, tile.split(", "))
        used["kFp16"].add(exact)
        used["kFp8"] |= {fast, rest}
    for tile in experts:
        tokens = int(tile.split(", ")[1])
        # Quarters of the tile, of which TileTraits::kWidths takes some.
        quarters = {tokens * part // 4 for part in range(1, 5) if tokens * part % 32 == 0}
        used["kFp16"] |= quarters & {*range(WGMMA_TOKENS + 1)}
    text = """\
// Written by csrc/cuda/generate_tiles.py. FP32 accumulators, B (the activations) from shared memory.
//   WgmmaHalf<N>: m64nNk16, A (decoded weights) from registers.
//   WgmmaE4m3<N>: m64nNk32, A (the upper plane) from shared memory.
"""
    for precision, form in FORMS.items():
        text += f"\ntemplate <int N>\nstruct {form.wrapper};\n"
        text += "".join(wgmma_wrapper(form, tokens) for tokens in sorted(used[precision]))
    return text


def generate(folder: Path, numbers: Sequence[int] = ()) -> list[Path]:
    """Write everything, of all tiles or of some, into ``folder`` and return the .cu files."""
    tiles = read("tiles")
    tiles = [tiles[number] for number in numbers] or tiles
    mixed, experts = ([], []) if numbers else (read("mixed_tiles"), read("experts_tiles"))
    sources = {
        folder / f"{name}_{i // TILES_PER_FILE:02d}.cu": instantiations(macro, some[i : i + TILES_PER_FILE])
        for name, macro, some in (
            ("tiles", "NESTEDFP_INSTANTIATE", tiles),
            ("mixed_tiles", "NESTEDFP_INSTANTIATE_MIXED", mixed),
            ("experts_tiles", "NESTEDFP_INSTANTIATE_EXPERTS", experts),
        )
        for i in range(0, len(some), TILES_PER_FILE)
    }
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in {**sources, folder / "wgmma.inc": wgmma(tiles, mixed, experts)}.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for stale in set(folder.glob("*tiles_*.cu")) - set(sources):
        stale.unlink()
    return list(sources)


if __name__ == "__main__":
    print("\n".join(map(str, generate(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]]))))

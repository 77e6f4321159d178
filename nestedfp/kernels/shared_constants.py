"""Constants that Python and the compiled libraries both define, compared when a library is loaded.

Each side defines them once, where it uses them; csrc/shared_constants.h returns those of a library. Sources that are newer
than a build, or older, end in an ImportError here and not in wrong numbers.
"""

import struct
from collections.abc import Mapping

from nestedfp.format import FORMAT_VERSION, LIMIT, UPPER_SCALE
from nestedfp.kernels.activations import CARRIER_COLUMNS, E4M3_MAX, MIN_SCALE
from nestedfp.modes import CODES, Mode

FORMAT: dict[str, int] = {
    "format_version": FORMAT_VERSION,
    "limit_bits": struct.unpack("<H", struct.pack("<e", LIMIT))[0],
    "upper_scale": int(UPPER_SCALE),
    "precision_fp16": CODES[Mode.FP16],
    "precision_fp8": CODES[Mode.FP8],
    "e4m3_max": int(E4M3_MAX),
    "inverse_min_scale": round(1 / MIN_SCALE),
    "carrier_columns": CARRIER_COLUMNS,
}


def check(library: str, text: str | None, own: Mapping[str, int]) -> None:
    """Compare a library's constants with this source's.

    Args:
        library: its name, for the message.
        text: what it returned, "name=value" separated by spaces; None if it returns none, as older builds do not.
        own: what this source has beside ``FORMAT``.

    Raises:
        ImportError: naming every constant that differs or that only one side has.
    """
    expected = {**FORMAT, **own}
    built = {name: int(value) for name, value in (field.split("=") for field in (text or "").split())}
    differing = [
        f"{name} is {built.get(name, 'missing')} there and {expected.get(name, 'missing')} here"
        for name in sorted(expected.keys() | built.keys())
        if built.get(name) != expected.get(name)
    ]
    if differing:
        raise ImportError(
            f"the compiled library {library} does not belong to this source: {'; '.join(differing)}. Build it again: "
            "'pip install --no-build-isolation .'"
        )

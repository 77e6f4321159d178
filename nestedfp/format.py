"""The NestedFP weight format, byte for byte, and a plain PyTorch reference for it.

One FP16 weight is stored as two bytes in two separate planes, ``upper`` and ``lower``. FP8 mode reads ``upper`` alone;
FP16 mode reads both and gets the original 16 bits back, every one of them. Same total size as FP16.

Bits
    FP16 is ``s E1..E5 M1..M10`` with exponent bias 15. A weight with |w| <= 1.75 has E1 = 0, so 15 bits carry it.

    ========= ========================================= ==========================================================
    mag       ``w & 0x7fff``                            at most 0x3f00 (1.75)
    c         ``mag >> 7``                              E2..E5 M1..M3, not rounded
    m         ``mag & 0x7f``                            M4..M10, what rounding drops
    r         ``m > 64 or (m == 64 and c & 1)``         round to nearest, ties to even
    upper     ``s << 7 | (c + r)``                      8 bits: the E4M3 (fn) code of ``w * 256``
    lower     ``w & 0xff``                              8 bits: M3..M10
    ========= ========================================= ==========================================================

    ``upper`` is E4M3's code because E4M3's exponent bias is 7 and FP16's is 15: scaling by 2^8 only moves bits,
    subnormals included. Its magnitude is at most 0x7e (448, E4M3's largest value) and never 0x7f (NaN).

Join
    ``lower >> 7`` is M3, the last bit that rounding keeps. It differs from the last bit of ``upper`` exactly when
    rounding carried. So, on the 7 magnitude bits, ``t = upper - (lower >> 7)`` has the right E2..E5 M1 M2 in its top
    six bits whether or not it did, and ``w = s << 15 | (t >> 1) << 8 | lower``.

Scale
    The value of FP8 mode is ``e4m3(upper) / 256`` with the same constant for every tensor. There are no scales to
    store, merge or shard: fusing QKV and sharding for tensor parallelism are exact.

Range
    32,258 finite patterns have |w| <= 1.75, both zeros included; each survives the round trip. The few weights of a
    layer beyond 1.75 are clamped in the planes and listed (nestedfp/nested_weight.py).

On disk
    ``<name>.weight_upper`` and ``<name>.weight_lower``: uint8, the shape of ``<name>.weight``, row-major. Kernels
    permute the planes once while loading; those layouts are private to them.

The C++ twin is csrc/format.h. Both are tested against each other on all 65,536 patterns.
"""

import torch

FORMAT_VERSION = 1
LIMIT = 1.75  # largest |w| that the planes hold
OUTLIER_LIMIT_FRACTION = 0.001  # a layer with a larger share of weights beyond LIMIT stays plain FP16
UPPER_SCALE = 256.0  # the upper plane is w * UPPER_SCALE in E4M3


def split(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split FP16 weights into planes.

    Args:
        weight: any shape, float16, every |w| <= 1.75.

    Returns:
        ``(upper, lower)``, uint8, the shape of ``weight``.

    Raises:
        ValueError: for another dtype, or for a weight outside the range; the message says how many.
    """
    if weight.dtype != torch.float16:
        raise ValueError(f"split: expected float16, got {weight.dtype}; cast the weight first")
    outside = int((~(weight.abs() <= LIMIT)).sum())
    if outside:
        raise ValueError(
            f"split: expected every |w| <= {LIMIT}, got {outside} of {weight.numel()} weights beyond it, infinite or "
            "NaN; nested_weight.nest() handles them"
        )
    bits = weight.view(torch.int16).to(torch.int32)
    magnitude = bits & 0x7FFF
    dropped = magnitude & 0x7F
    code = magnitude >> 7
    round_up = (dropped > 64) | ((dropped == 64) & (code & 1 == 1))
    upper = (bits >> 8 & 0x80) | (code + round_up)
    return upper.to(torch.uint8), (bits & 0xFF).to(torch.uint8)


def join(upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """Rebuild the FP16 weights from both planes.

    Args:
        upper, lower: uint8, any shape, the same.

    Returns:
        float16, that shape.
    """
    high = upper.to(torch.int16)
    low = lower.to(torch.int16)
    magnitude = ((high & 0x7F) - (low >> 7)) >> 1
    sign = (high >> 7) * -0x8000  # bit 15 of an int16
    return (sign | magnitude << 8 | low).view(torch.float16)


def upper_to_float(upper: torch.Tensor) -> torch.Tensor:
    """Return the weights that FP8 mode multiplies with: the E4M3 value of ``upper`` (uint8) over 256, as float32."""
    return upper.view(torch.float8_e4m3fn).to(torch.float32) / UPPER_SCALE

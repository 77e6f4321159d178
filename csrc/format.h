// The NestedFP weight format, one element at a time: the C++ twin of nestedfp/format.py, which has the prose.
//
// constexpr on host and device and free of intrinsics, so that the vector kernels of every processor are tested against
// the same few lines. All values are bit patterns: FP16 as uint16_t, E4M3 as uint8_t.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define NESTEDFP_HOST_DEVICE __host__ __device__
#else
#define NESTEDFP_HOST_DEVICE
#endif

namespace nestedfp {

inline constexpr int kFormatVersion = 1;
inline constexpr uint16_t kSignMask = 0x8000;
inline constexpr uint16_t kMagnitudeMask = 0x7fff;
// 1.75: the largest magnitude whose top exponent bit is 0 once rounded.
inline constexpr uint16_t kLimitMagnitude = 0x3f00;
// Magnitudes from here up are infinities and NaNs.
inline constexpr uint16_t kInfinity = 0x7c00;
// The upper plane is w * kUpperScale in E4M3.
inline constexpr int kUpperScale = 256;

struct Nested {
    uint8_t upper;  // E4M3 code of w * kUpperScale
    uint8_t lower;  // low byte of w
};

NESTEDFP_HOST_DEVICE constexpr bool is_nestable(uint16_t w) { return (w & kMagnitudeMask) <= kLimitMagnitude; }

NESTEDFP_HOST_DEVICE constexpr bool is_finite(uint16_t w) { return (w & kMagnitudeMask) < kInfinity; }

// Clamps |w| to 1.75, keeping the sign.
NESTEDFP_HOST_DEVICE constexpr uint16_t clamp_to_limit(uint16_t w) {
    return is_nestable(w) ? w : static_cast<uint16_t>((w & kSignMask) | kLimitMagnitude);
}

// Needs is_nestable(w).
NESTEDFP_HOST_DEVICE constexpr Nested split(uint16_t w) {
    const unsigned magnitude = w & kMagnitudeMask;
    // Round to nearest, ties to even, at bit 7: add just under a half, plus one more where the kept part is odd.
    const unsigned rounded = (magnitude + 0x3f + ((magnitude >> 7) & 1)) >> 7;
    return {static_cast<uint8_t>((w & kSignMask) >> 8 | rounded), static_cast<uint8_t>(w & 0xff)};
}

NESTEDFP_HOST_DEVICE constexpr uint16_t join(uint8_t upper, uint8_t lower) {
    // The top bit of `lower` is the last bit that rounding kept; it disagrees with `upper` exactly when rounding
    // carried, and then the subtraction borrows the carry back.
    const unsigned unrounded = (upper & 0x7fu) - (lower >> 7);
    return static_cast<uint16_t>((upper & 0x80u) << 8 | (unrounded >> 1) << 8 | lower);
}

// FP16 pattern of the FP8-mode weight, value(upper) / 256. Dividing E4M3 (bias 7) by 2^8 gives FP16's own exponent bias
// of 15, so this only moves bits: subnormals come out right as well.
NESTEDFP_HOST_DEVICE constexpr uint16_t upper_to_half(uint8_t upper) {
    return static_cast<uint16_t>((upper & 0x80u) << 8 | (upper & 0x7fu) << 7);
}

// What the CPU layout stores in place of `lower`: the signed distance, in units of FP16's last bit, from the rounded
// magnitude to the true one, in [-64, 64]. One addition then rebuilds a weight: magnitude = (upper & 0x7f) * 128 +
// residual.
NESTEDFP_HOST_DEVICE constexpr int8_t lower_to_residual(uint8_t lower) {
    const int low7 = lower & 0x7f, rounded_up = (low7 + (lower >> 7)) > 64;  // no branch: compilers vectorise it
    return static_cast<int8_t>(low7 - (rounded_up << 7));
}

NESTEDFP_HOST_DEVICE constexpr uint16_t join_residual(uint8_t upper, int8_t residual) {
    return static_cast<uint16_t>((upper & 0x80u) << 8 | (((upper & 0x7f) << 7) + residual));
}

static_assert(split(0x3f00).upper == 0x7e && split(0x3f00).lower == 0x00, "1.75 * 256 = 448, E4M3's largest value");
static_assert(join(split(0xb7c1).upper, split(0xb7c1).lower) == 0xb7c1, "the round trip survives a rounding carry");

}  // namespace nestedfp

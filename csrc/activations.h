// Constants of the per-token activation quantiser.
#pragma once

namespace nestedfp {

// E4M3's largest value.
inline constexpr float kE4m3Max = 448.0f;
// The smallest scale of a token is 1 / kInverseMinScale.
inline constexpr float kInverseMinScale = kE4m3Max * 512.0f;
inline constexpr float kMinScale = 1.0f / kInverseMinScale;
// A carrier (nestedfp/kernels/ops.py) has rows of a multiple of so many columns: codes of such rows need no padding.
inline constexpr int kCarrierColumns = 64;

}  // namespace nestedfp

// The two precisions that a NestedFP weight can run in: of an engine step (mode.h) and of a GEMM's operands. The
// numbers are those of CODES in nestedfp/modes.py; they cross the borders between libraries and languages.
#pragma once

namespace nestedfp {

enum class Precision : int {
    // Both planes: exactly the stored FP16 weights, times FP16 activations.
    kFp16 = 0,
    // The upper plane alone: E4M3 weights, times E4M3 activations with one scale per token.
    kFp8 = 1,
};

}  // namespace nestedfp

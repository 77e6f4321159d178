// An integer that others are divided by, prepared for it: a multiplication and a shift instead of some forty dependent
// instructions at the start of every kernel. Granlund and Montgomery, "Division by invariant integers using
// multiplication", PLDI 1994.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define NESTEDFP_PLAIN __host__ __device__ __forceinline__
#else
#define NESTEDFP_PLAIN inline
#endif

namespace nestedfp::cuda {

class Divisor {
  public:
    // 0 may be stored, but not divided by.
    Divisor(int value = 0) : value_(value) {
        if (value < 2) return;
        int log2 = 1;  // rounded up
        while ((int64_t{1} << log2) < value) ++log2;
        shift_ = log2 - 1;
        multiplier_ = static_cast<uint32_t>(((uint64_t{1} << (31 + log2)) + value - 1) / value);
    }

    NESTEDFP_PLAIN operator int() const { return value_; }

    // Of 0 <= dividend < 2^31.
    friend NESTEDFP_PLAIN int operator/(int dividend, const Divisor& divisor) {
        if (divisor.value_ == 1) return dividend;
        const uint64_t product = static_cast<uint64_t>(static_cast<uint32_t>(dividend)) * divisor.multiplier_;
        return static_cast<int>(static_cast<uint32_t>(product >> 32) >> divisor.shift_);
    }

  private:
    int value_;
    uint32_t multiplier_ = 0;
    int shift_ = 0;
};

}  // namespace nestedfp::cuda

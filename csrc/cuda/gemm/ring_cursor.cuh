// Where a consumer is in a ring of stages.
#pragma once

#include "cuda/gemm/ptx.cuh"

namespace nestedfp::cuda {

// The state is the address of the stage's full barrier and the parity to wait for, with no index beside them: the
// consumers are bound by instructions. The stage's empty barrier lies at a constant distance from the full one, and its
// bytes follow by one multiply-add: 8 bytes from barrier to barrier are StageBytes from stage to stage.
template <int Stages, int StageBytes>
class RingCursor {
  public:
    NESTEDFP_DEVICE explicit RingCursor(uint32_t first_full)
        : full_(first_full), end_(opaque(first_full + 8 * Stages)) {}

    // Waits until the stage's bytes are there, steps on to the next stage and returns the barrier waited for.
    NESTEDFP_DEVICE uint32_t wait() {
        const uint32_t full = full_;
        barrier_wait(full, phase_);
        advance();
        return full;
    }

    // Where in the stage of barrier `full` something lies that lies at `first` in the first one, both counted in units
    // of UnitBytes: origin(first) + offset(full), modulo 2^32. To be called before the first wait.
    template <int UnitBytes>
    NESTEDFP_DEVICE uint32_t origin(uint32_t first) const {
        return opaque(first - offset<UnitBytes>(full_));
    }

    template <int UnitBytes>
    NESTEDFP_DEVICE static uint32_t offset(uint32_t full) {
        static_assert(StageBytes % (8 * UnitBytes) == 0);
        return full * (StageBytes / (8 * UnitBytes));
    }

  private:
    NESTEDFP_DEVICE void advance() { advance_in_ring<8, 8 * Stages>(full_, phase_, end_); }

    uint32_t full_, end_;
    int phase_ = 0;
};

}  // namespace nestedfp::cuda

#include "mode.h"

#include <algorithm>
#include <utility>

namespace nestedfp {
namespace {

std::vector<uint8_t> mask;

// Relaxed is enough: the flags order nothing else. Whoever switches does so between engine steps.
void store(std::atomic<int64_t>& to, int64_t value) { to.store(value, std::memory_order_relaxed); }

}  // namespace

ModeInForce& mode_in_force() {
    static ModeInForce now;
    return now;
}

void set_mode_in_force(Precision mode) {
    store(mode_in_force().rows, 0);
    store(mode_in_force().mode, static_cast<int64_t>(mode));
}

void set_mixed_in_force(std::vector<uint8_t> is_exact) {
    mask = std::move(is_exact);
    const auto count = std::count(mask.begin(), mask.end(), 1);
    const bool leads = std::find(mask.begin(), mask.end(), 0) - mask.begin() == count;
    store(mode_in_force().mode, static_cast<int64_t>(Precision::kFp8));
    store(mode_in_force().exact_rows, leads ? count : -1);
    store(mode_in_force().rows, static_cast<int64_t>(mask.size()));
}

const std::vector<uint8_t>& exact_mask() { return mask; }

}  // namespace nestedfp

// The precision that linear layers of this process run in. Ops read it when they run, so one compiled graph serves
// both, and steps that have rows of both.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "precision.h"

namespace nestedfp {

// Of all later ops. In a mixed step some rows run in FP16 and the others in FP8.
struct ModeInForce {
    // A Precision's number; of a mixed step FP8's.
    std::atomic<int64_t> mode{static_cast<int64_t>(Precision::kFp16)};
    // Rows of the mixed step, and how many of them, the first ones, are exact: run in FP16; -1: exact rows are not the
    // first ones. 0 rows: no mixed step.
    std::atomic<int64_t> rows{0};
    std::atomic<int64_t> exact_rows{0};

    // How many of an op's m rows, the first ones, run in FP16; -1 as above. An op with other rows than the step's runs
    // FP16 whole: nobody knows whose its rows are.
    int64_t exact_of(int64_t m) const {
        const int64_t mixed = rows.load(std::memory_order_relaxed);
        if (mixed == 0) return mode.load(std::memory_order_relaxed) == static_cast<int64_t>(Precision::kFp8) ? 0 : m;
        return m == mixed ? exact_rows.load(std::memory_order_relaxed) : m;
    }
};

// One for the process; another library reads it through its address.
ModeInForce& mode_in_force();

void set_mode_in_force(Precision mode);
// A mixed step, of both kinds of rows: a byte for each, 0 or 1.
void set_mixed_in_force(std::vector<uint8_t> is_exact);
// What was given.
const std::vector<uint8_t>& exact_mask();

}  // namespace nestedfp

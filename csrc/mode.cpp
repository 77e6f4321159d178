#include "mode.h"

namespace nestedfp {
namespace {

// Relaxed is enough: the flag orders nothing else. Whoever switches does so between engine steps.
std::atomic<int64_t> mode_in_force{static_cast<int64_t>(Precision::kFp16)};

}  // namespace

Precision current_mode() { return static_cast<Precision>(mode_in_force.load(std::memory_order_relaxed)); }

void set_current_mode(Precision mode) { mode_in_force.store(static_cast<int64_t>(mode), std::memory_order_relaxed); }

const std::atomic<int64_t>& mode_in_memory() { return mode_in_force; }

}  // namespace nestedfp

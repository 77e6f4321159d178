// The precision that linear layers of this process run in. Ops read it when they run, so one compiled graph serves
// both.
#pragma once

#include <atomic>
#include <cstdint>

#include "precision.h"

namespace nestedfp {

Precision current_mode();
void set_current_mode(Precision mode);

// Where it is kept, for who reads it often from another library: a Precision's number.
const std::atomic<int64_t>& mode_in_memory();

}  // namespace nestedfp

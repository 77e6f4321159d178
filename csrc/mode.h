// The precision that linear layers of this process run in. Ops read it when they run, so one compiled graph serves
// both.
#pragma once

#include <atomic>
#include <cstdint>

namespace nestedfp {

enum class Mode : int64_t { kFp16 = 0, kFp8 = 1 };

Mode current_mode();
void set_current_mode(Mode mode);

// Where it is kept, for who reads it often from another library: a Mode's number.
const std::atomic<int64_t>& mode_in_memory();

}  // namespace nestedfp

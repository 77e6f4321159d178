// Runs device code on a CPU: every thread of a block is a fiber, blocks run one after another.
//
// What a GPU leaves open is drawn from a seed: which thread goes on, and when an asynchronous copy happens between its
// start and the wait for it. So a barrier that is missing, or a stage of a ring that is filled too early, shows as a
// wrong result under some seed. Shared memory is a block of its own on the heap, for an address sanitizer to guard.
// What all lanes of a warp must do together is checked to be the same instruction in all of them; a block in which no
// thread can go on is reported.
#pragma once

#include <cstdint>
#include <functional>

namespace emulator {

// Runs `thread` in `blocks` x `threads` threads with `shared_bytes` of shared memory each block.
void run_grid(int blocks, int threads, int shared_bytes, unsigned seed, const std::function<void()>& thread);

// The seed of launches that name none.
unsigned launch_seed();
void set_launch_seed(unsigned seed);

// Of the thread that calls:
int thread_index();
int block_index();
int block_threads();
uint8_t* shared_memory();
void sync_block();

// A warp instruction: every lane comes with `mine`, and `all` sees the 32 of them once before each lane goes on.
using Together = void (*)(void* (&lanes)[32]);
void together(void* mine, Together all);

// Copies 16 bytes some time until wait_copies: the first `bytes` from `from`, the rest zeros.
void start_copy(void* to, const void* from, int bytes);
void end_group();
// Until all groups of this thread but the last `pending` are there.
void wait_copies(int pending);

[[noreturn]] void fail(const char* what);

}  // namespace emulator

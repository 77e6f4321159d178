// Runs device code on a CPU: every thread is a fiber, and some thread blocks run at the same time.
//
// What a GPU leaves open is drawn from a seed: which thread goes on, which warps lag behind, and when something
// asynchronous happens between its start and the wait for it. So a barrier that is missing, or a stage of a ring that
// is filled too early, shows as a wrong result under some seed. Shared memory is a block of its own on the heap, for an
// address sanitizer to guard. What all lanes of a warp must do together is checked to be the same instruction in all of
// them; a grid in which no thread can go on is reported.
#pragma once

#include <cstdint>
#include <functional>

namespace emulator {

struct Launch {
    int blocks = 0, threads = 0, shared_bytes = 0;
    unsigned seed = 0;
    // Blocks of a cluster, and clusters that run at the same time.
    int cluster = 1, resident = 1;
    // Clusters start in the order of their number, as on a GPU, or in one of the seed's.
    bool is_in_order = false;
    // What the kernel before this one does at last, some time before wait_before returns.
    std::function<void()> before = {};
};

void run_grid(const Launch& launch, const std::function<void()>& thread);

// What launches through CUDA's runtime take over: all but blocks, threads, shared memory and cluster.
Launch& launch_defaults();

// Of the thread that calls:
int thread_index();
int block_index();
int block_threads();
int cluster_blocks();
uint8_t* shared_memory();
int shared_bytes();
// Of another block of its cluster, which must not have ended.
uint8_t* shared_memory_of(int rank);

void sync_block();
// Of all threads of the cluster that have not ended.
void sync_cluster();
// Barrier `id`, among `threads` threads; who arrives does not wait.
void sync_named(int id, int threads);
void arrive_named(int id, int threads);
// Returns once the kernel before this one has ended.
void wait_before();
// Returns once `is_true`, which others make true.
void wait_until(const std::function<bool()>& is_true);
// Lets others go on, between two looks at what they are to change.
void poll();
// A number of the seed's from 0 to count - 1.
int draw(int count);

// A warp instruction: every lane comes with `mine`, and `all` sees the 32 of them once before each lane goes on.
using Together = void (*)(void* (&lanes)[32]);
void together(void* mine, Together all);

// Something asynchronous, which happens some time from now, in no order.
void later(std::function<void()> event);

// Asynchronous work of a warp, which happens in order: some time from now until this warp has waited for it. To be
// called once a warp, from within what it does together. Work belongs to the group that its warp ends next.
void warp_later(std::function<void()> work);
void end_warp_group();
// Until all groups of this lane's warp but the last `pending` that it has ended are done.
void wait_warp_groups(int pending);

// Copies 16 bytes some time until wait_copies: the first `bytes` from `from`, the rest zeros.
void start_copy(void* to, const void* from, int bytes);
void end_group();
// Until all groups of this thread but the last `pending` are there.
void wait_copies(int pending);

[[noreturn]] void fail(const char* what);

}  // namespace emulator

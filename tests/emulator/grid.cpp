#include "grid.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;

struct Copy {
    void* to;
    const void* from;
    int bytes;

    void run() const {
        std::memset(to, 0, 16);
        std::memcpy(to, from, static_cast<size_t>(bytes));
    }
};

struct Warp {
    void* lanes[32];
    int arrived = 0;
    Together what = nullptr;
};

enum class State { kReady, kBlockBarrier, kWarp, kDone };

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    void* fake_stack = nullptr;
    State state = State::kReady;
    std::vector<Copy> open_group;
    std::deque<std::vector<Copy>> groups;
};

struct Block {
    int index = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::unique_ptr<uint8_t[]> shared;
    std::mt19937 random;
    ucontext_t scheduler;
    void* scheduler_fake_stack = nullptr;
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_bytes = 0;
    int running = 0;
    int at_barrier = 0, ended = 0;
    const std::function<void()>* thread = nullptr;
};

Block* block = nullptr;
unsigned seed_of_launches = 0;

Fiber& self() { return block->fibers[static_cast<size_t>(block->running)]; }

void switch_to_scheduler(bool for_good) {
    Fiber& fiber = self();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, block->scheduler_stack,
                                   block->scheduler_stack_bytes);
#else
    (void)for_good;
#endif
    swapcontext(&fiber.context, &block->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#endif
}

void yield_as(State state) {
    self().state = state;
    switch_to_scheduler(false);
}

void release_barrier_if_full() {
    if (block->at_barrier == 0 || block->at_barrier + block->ended < static_cast<int>(block->fibers.size())) return;
    if (block->ended > 0) fail("a thread has ended while others wait for it at a barrier of the block");
    for (Fiber& fiber : block->fibers) fiber.state = State::kReady;
    block->at_barrier = 0;
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block->scheduler_stack, &block->scheduler_stack_bytes);
#endif
    (*block->thread)();
    for (const std::vector<Copy>& group : self().groups) {
        if (!group.empty()) fail("a thread has ended before its copies were waited for");
    }
    if (!self().open_group.empty()) fail("a thread has ended before its copies were waited for");
    self().state = State::kDone;
    ++block->ended;
    release_barrier_if_full();
    switch_to_scheduler(true);
}

void run_block(Block& current) {
    block = &current;
    for (Fiber& fiber : current.fibers) {
        getcontext(&fiber.context);
        fiber.stack = std::make_unique<char[]>(kStackBytes);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
    }
    std::vector<int> ready;
    while (current.ended < static_cast<int>(current.fibers.size())) {
        ready.clear();
        for (size_t i = 0; i < current.fibers.size(); ++i) {
            if (current.fibers[i].state == State::kReady) ready.push_back(static_cast<int>(i));
        }
        if (ready.empty()) fail("no thread of the block can go on: they wait at different places");
        // Each once, in an order of the seed's.
        std::shuffle(ready.begin(), ready.end(), current.random);
        for (const int next : ready) {
            current.running = next;
#if defined(__SANITIZE_ADDRESS__)
            __sanitizer_start_switch_fiber(&current.scheduler_fake_stack,
                                           current.fibers[static_cast<size_t>(next)].stack.get(), kStackBytes);
#endif
            swapcontext(&current.scheduler, &current.fibers[static_cast<size_t>(next)].context);
#if defined(__SANITIZE_ADDRESS__)
            __sanitizer_finish_switch_fiber(current.scheduler_fake_stack, nullptr, nullptr);
#endif
        }
    }
    block = nullptr;
}

}  // namespace

void run_grid(int blocks, int threads, int shared_bytes, unsigned seed, const std::function<void()>& thread) {
    std::vector<int> order(static_cast<size_t>(blocks));
    for (int i = 0; i < blocks; ++i) order[static_cast<size_t>(i)] = i;
    std::mt19937 random(seed);
    std::shuffle(order.begin(), order.end(), random);
    for (const int index : order) {
        Block current;
        current.index = index;
        current.fibers = std::vector<Fiber>(static_cast<size_t>(threads));
        current.warps.resize(static_cast<size_t>(threads) / 32);
        current.shared = std::make_unique<uint8_t[]>(static_cast<size_t>(shared_bytes));
        std::memset(current.shared.get(), 0xff, static_cast<size_t>(shared_bytes));  // NaN in every format
        current.random.seed(random());
        current.thread = &thread;
        run_block(current);
    }
}

unsigned launch_seed() { return seed_of_launches; }
void set_launch_seed(unsigned seed) { seed_of_launches = seed; }

int thread_index() { return block->running; }
int block_index() { return block->index; }
int block_threads() { return static_cast<int>(block->fibers.size()); }
uint8_t* shared_memory() { return block->shared.get(); }

void sync_block() {
    ++block->at_barrier;
    self().state = State::kBlockBarrier;
    release_barrier_if_full();  // the last to come goes on with the others in their turn
    switch_to_scheduler(false);
}

void together(void* mine, Together all) {
    Warp& warp = block->warps[static_cast<size_t>(block->running / 32)];
    if (warp.arrived == 0) warp.what = all;
    if (warp.what != all) fail("the lanes of a warp came to different warp instructions");
    warp.lanes[block->running % 32] = mine;
    if (++warp.arrived < 32) {
        yield_as(State::kWarp);
        return;
    }
    all(warp.lanes);
    warp.arrived = 0;
    const size_t first = static_cast<size_t>(block->running / 32 * 32);
    for (size_t i = first; i < first + 32; ++i) block->fibers[i].state = State::kReady;
}

void start_copy(void* to, const void* from, int bytes) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
        fail("an asynchronous copy from or to an address that is no multiple of 16");
    if (bytes < 0 || bytes > 16) fail("an asynchronous copy of fewer than 0 or more than 16 bytes");
    const Copy copy{to, from, bytes};
    if (block->random() % 2 == 0) {
        copy.run();  // as early as can be
    } else {
        self().open_group.push_back(copy);  // as late
    }
}

void end_group() {
    self().groups.push_back(std::move(self().open_group));
    self().open_group.clear();
}

void wait_copies(int pending) {
    std::deque<std::vector<Copy>>& groups = self().groups;
    while (static_cast<int>(groups.size()) > pending) {
        for (const Copy& copy : groups.front()) copy.run();
        groups.pop_front();
    }
}

void fail(const char* what) {
    if (block != nullptr) {
        std::fprintf(stderr, "emulator: block %d, thread %d: %s\n", block->index, block->running, what);
    } else {
        std::fprintf(stderr, "emulator: %s\n", what);
    }
    std::exit(3);
}

}  // namespace emulator

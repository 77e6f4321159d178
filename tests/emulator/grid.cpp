#include "grid.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kNamedBarriers = 16;
constexpr int kIdleRounds = 1000;  // in which threads only look: after these none will ever see what it looks for

using Stack = std::unique_ptr<char[]>;
using Event = std::function<void()>;

struct Copy {
    void* to;
    const void* from;
    int bytes;

    void run() const {
        std::memset(to, 0, 16);
        std::memcpy(to, from, static_cast<size_t>(bytes));
    }
};

// What is lazy goes on in one of so many rounds.
struct Warp {
    void* lanes[32];
    int arrived = 0;
    Together what = nullptr;
    // Asynchronous work in order; each belongs to a group.
    std::deque<std::pair<int, Event>> work;
    int laziness = 1;

    void work_off(int before_group) {
        while (!work.empty() && work.front().first < before_group) {
            work.front().second();
            work.pop_front();
        }
    }
};

struct NamedBarrier {
    int arrived = 0, threads = 0;
    std::vector<int> waiting;
};

enum class State { kReady, kBlocked, kUntil, kDone };

struct Block;

struct Fiber {
    Block* block = nullptr;
    int index = 0;
    ucontext_t context;  // of its first step; from then on it goes on at `place`, with no system call
    jmp_buf place;
    bool has_begun = false;
    Stack stack;
    void* fake_stack = nullptr;
    State state = State::kReady;
    std::function<bool()> until;
    bool only_looked = false;
    int warp_groups = 0;
    std::vector<Copy> open_group;
    std::deque<std::vector<Copy>> groups;

    Warp& warp() const;
};

struct Cluster;

struct Block {
    Cluster* cluster = nullptr;
    int index = 0, rank = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::unique_ptr<uint8_t[]> shared;
    NamedBarrier named[kNamedBarriers];
    int at_barrier = 0, ended = 0;
    int laziness = 1;

    bool is_done() const { return ended == static_cast<int>(fibers.size()); }
};

struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    int at_barrier = 0, ended = 0, threads = 0;
};

struct Grid {
    const Launch* launch = nullptr;
    const std::function<void()>* thread = nullptr;
    std::mt19937 random;
    std::list<Cluster> clusters;
    std::vector<Event> events;
    std::vector<Stack> stacks;
    bool is_before_done = false;
    jmp_buf scheduler;
    void* scheduler_fake_stack = nullptr;
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_bytes = 0;
};

Grid* grid = nullptr;
Fiber* running = nullptr;

Warp& Fiber::warp() const { return block->warps[static_cast<size_t>(index / 32)]; }

void switch_to_scheduler(bool for_good) {
    Fiber& fiber = *running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, grid->scheduler_stack,
                                   grid->scheduler_stack_bytes);
#else
    (void)for_good;
#endif
    if (_setjmp(fiber.place) == 0) _longjmp(grid->scheduler, 1);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#endif
}

void switch_to(Fiber& fiber) {
    running = &fiber;
    fiber.only_looked = false;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&grid->scheduler_fake_stack, fiber.stack.get(), kStackBytes);
#endif
    if (_setjmp(grid->scheduler) == 0) {
        if (fiber.has_begun) _longjmp(fiber.place, 1);
        fiber.has_begun = true;
        setcontext(&fiber.context);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(grid->scheduler_fake_stack, nullptr, nullptr);
#endif
    running = nullptr;
}

void yield_as(State state) {
    running->state = state;
    switch_to_scheduler(false);
}

void release_barrier_if_full(Block& block) {
    if (block.at_barrier == 0 || block.at_barrier + block.ended < static_cast<int>(block.fibers.size())) return;
    if (block.ended > 0) fail("a thread has ended while others wait for it at a barrier of the block");
    for (Fiber& fiber : block.fibers) fiber.state = State::kReady;
    block.at_barrier = 0;
}

// Nobody of the cluster that has not ended does anything but wait at this barrier.
void release_cluster_if_full(Cluster& cluster) {
    if (cluster.at_barrier == 0 || cluster.at_barrier + cluster.ended < cluster.threads) return;
    for (const auto& block : cluster.blocks) {
        for (Fiber& fiber : block->fibers) {
            if (fiber.state != State::kDone) fiber.state = State::kReady;
        }
    }
    cluster.at_barrier = 0;
}

void end_thread() {
    Fiber& fiber = *running;
    for (const std::vector<Copy>& group : fiber.groups) {
        if (!group.empty()) fail("a thread has ended before its copies were waited for");
    }
    if (!fiber.open_group.empty()) fail("a thread has ended before its copies were waited for");
    if (!fiber.warp().work.empty()) fail("a thread has ended before its warp's asynchronous work was waited for");
    fiber.state = State::kDone;
    ++fiber.block->ended;
    ++fiber.block->cluster->ended;
    release_barrier_if_full(*fiber.block);
    release_cluster_if_full(*fiber.block->cluster);
}

void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &grid->scheduler_stack, &grid->scheduler_stack_bytes);
#endif
    (*grid->thread)();
    end_thread();
    switch_to_scheduler(true);
}

Stack take_stack() {
    if (grid->stacks.empty()) return Stack(new char[kStackBytes]);
    Stack stack = std::move(grid->stacks.back());
    grid->stacks.pop_back();
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(stack.get(), kStackBytes);  // of frames that never returned
#endif
    return stack;
}

void start_fiber(Fiber& fiber, Block& block, int index) {
    fiber.block = &block;
    fiber.index = index;
    fiber.stack = take_stack();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
}

void start_cluster(int number) {
    const Launch& launch = *grid->launch;
    Cluster& cluster = grid->clusters.emplace_back();
    cluster.threads = launch.cluster * launch.threads;
    for (int rank = 0; rank < launch.cluster; ++rank) {
        Block& block = *cluster.blocks.emplace_back(std::make_unique<Block>());
        block.cluster = &cluster;
        block.index = number * launch.cluster + rank;
        block.rank = rank;
        block.laziness = 1 << 3 * draw(3);
        block.fibers = std::vector<Fiber>(static_cast<size_t>(launch.threads));
        block.warps.resize(static_cast<size_t>(launch.threads) / 32);
        block.shared = std::make_unique<uint8_t[]>(static_cast<size_t>(launch.shared_bytes));
        std::memset(block.shared.get(), 0xff, static_cast<size_t>(launch.shared_bytes));  // NaN in every format
        for (int i = 0; i < launch.threads; ++i) start_fiber(block.fibers[static_cast<size_t>(i)], block, i);
    }
}

void end_cluster(Cluster& cluster) {
    for (const auto& block : cluster.blocks) {
        for (Fiber& fiber : block->fibers) grid->stacks.push_back(std::move(fiber.stack));
        for (const NamedBarrier& barrier : block->named) {
            // One arrival too many may be left, of whoever leaves a turn to others that have none left to take.
            if (!barrier.waiting.empty()) fail("a block has ended with threads at a named barrier");
        }
    }
}

void run_event(size_t which) {
    const Event event = std::move(grid->events[which]);
    grid->events[which] = std::move(grid->events.back());
    grid->events.pop_back();
    event();
}

// Some of what is under way happens.
void run_events() {
    for (size_t i = 0; i < grid->events.size();) {
        if (draw(4) == 0) {
            run_event(i);
        } else {
            ++i;
        }
    }
}

bool can_go_on(Fiber& fiber) {
    if (fiber.state == State::kUntil && fiber.until()) fiber.state = State::kReady;
    return fiber.state == State::kReady;
}

// The threads that go on in this round: those that can, but for warps and blocks that lag behind.
std::vector<Fiber*> next_round() {
    std::vector<Fiber*> all, chosen;
    for (Cluster& cluster : grid->clusters) {
        for (const auto& block : cluster.blocks) {
            for (Warp& warp : block->warps) {
                if (draw(64) == 0) warp.laziness = 1 << 2 * draw(3);
            }
            const bool is_lazy = draw(block->laziness) != 0;
            for (Fiber& fiber : block->fibers) {
                if (!can_go_on(fiber)) continue;
                all.push_back(&fiber);
                if (!is_lazy && draw(fiber.warp().laziness) == 0) chosen.push_back(&fiber);
            }
        }
    }
    std::vector<Fiber*>& round = chosen.empty() ? all : chosen;
    std::shuffle(round.begin(), round.end(), grid->random);
    return std::move(round);
}

void run_rounds() {
    int idle_rounds = 0;
    const size_t running_now = grid->clusters.size();
    while (grid->clusters.size() == running_now) {
        if (!grid->is_before_done && draw(8) == 0) wait_before();
        run_events();
        const std::vector<Fiber*> round = next_round();
        if (round.empty()) {
            if (!grid->events.empty()) {
                run_event(static_cast<size_t>(draw(static_cast<int>(grid->events.size()))));
            } else if (!grid->is_before_done) {
                wait_before();
            } else {
                fail("no thread can go on: they wait at different places");
            }
            continue;
        }
        bool only_looked = true;
        for (Fiber* const fiber : round) {
            switch_to(*fiber);
            only_looked = only_looked && fiber->only_looked;
        }
        idle_rounds = only_looked && grid->events.empty() ? idle_rounds + 1 : 0;
        if (idle_rounds > kIdleRounds) fail("threads wait for a value that nobody writes");
        for (auto cluster = grid->clusters.begin(); cluster != grid->clusters.end();) {
            if (cluster->ended == cluster->threads) {
                end_cluster(*cluster);
                cluster = grid->clusters.erase(cluster);
            } else {
                ++cluster;
            }
        }
    }
}

}  // namespace

void run_grid(const Launch& launch, const std::function<void()>& thread) {
    Grid current;
    current.launch = &launch;
    current.thread = &thread;
    current.random.seed(launch.seed);
    current.is_before_done = !launch.before;
    grid = &current;
    std::vector<int> order(static_cast<size_t>(launch.blocks / launch.cluster));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    if (!launch.is_in_order) std::shuffle(order.begin(), order.end(), current.random);
    for (const int number : order) {
        if (static_cast<int>(current.clusters.size()) == launch.resident) run_rounds();
        start_cluster(number);
    }
    while (!current.clusters.empty()) run_rounds();
    if (!current.events.empty()) fail("the grid has ended with copies under way that nobody waited for");
    grid = nullptr;
}

Launch& launch_defaults() {
    static Launch defaults;
    return defaults;
}

int thread_index() { return running->index; }
int block_index() { return running->block->index; }
int block_threads() { return static_cast<int>(running->block->fibers.size()); }
int cluster_blocks() { return grid->launch->cluster; }
uint8_t* shared_memory() { return running->block->shared.get(); }
int shared_bytes() { return grid->launch->shared_bytes; }

uint8_t* shared_memory_of(int rank) {
    const Cluster& cluster = *running->block->cluster;
    if (rank < 0 || rank >= static_cast<int>(cluster.blocks.size())) fail("an address in no block of the cluster");
    const Block& block = *cluster.blocks[static_cast<size_t>(rank)];
    if (block.is_done()) fail("an access to the shared memory of a block that has ended");
    return block.shared.get();
}

void sync_block() {
    Block& block = *running->block;
    ++block.at_barrier;
    running->state = State::kBlocked;
    release_barrier_if_full(block);  // the last to come goes on with the others in their turn
    switch_to_scheduler(false);
}

void sync_cluster() {
    Cluster& cluster = *running->block->cluster;
    ++cluster.at_barrier;
    running->state = State::kBlocked;
    release_cluster_if_full(cluster);
    switch_to_scheduler(false);
}

void arrive_named(int id, int threads) {
    if (id <= 0 || id >= kNamedBarriers) fail("a named barrier of no number from 1 to 15");
    Block& block = *running->block;
    NamedBarrier& barrier = block.named[id];
    if (barrier.arrived == 0) barrier.threads = threads;
    if (barrier.threads != threads) fail("threads disagree on how many meet at a named barrier");
    if (++barrier.arrived < threads) return;
    for (const int waiting : barrier.waiting) block.fibers[static_cast<size_t>(waiting)].state = State::kReady;
    barrier.waiting.clear();
    barrier.arrived = 0;
}

void sync_named(int id, int threads) {
    running->state = State::kBlocked;
    if (id > 0 && id < kNamedBarriers) running->block->named[id].waiting.push_back(running->index);
    arrive_named(id, threads);
    switch_to_scheduler(false);
}

void wait_before() {
    if (grid->is_before_done) return;
    grid->is_before_done = true;
    grid->launch->before();
}

void wait_until(const std::function<bool()>& is_true) {
    if (is_true()) return;
    running->until = is_true;
    yield_as(State::kUntil);
}

void poll() {
    running->only_looked = true;
    yield_as(State::kReady);
}

int draw(int count) { return static_cast<int>(grid->random() % static_cast<unsigned>(count)); }

void together(void* mine, Together all) {
    Warp& warp = running->warp();
    if (warp.arrived == 0) warp.what = all;
    if (warp.what != all) fail("the lanes of a warp came to different warp instructions");
    warp.lanes[running->index % 32] = mine;
    if (++warp.arrived < 32) {
        yield_as(State::kBlocked);
        return;
    }
    all(warp.lanes);
    warp.arrived = 0;
    const size_t first = static_cast<size_t>(running->index / 32 * 32);
    for (size_t i = first; i < first + 32; ++i) running->block->fibers[i].state = State::kReady;
}

void later(Event event) { grid->events.push_back(std::move(event)); }

void warp_later(Event work) {
    Warp& warp = running->warp();
    warp.work.emplace_back(running->warp_groups, std::move(work));
    if (draw(3) == 0) warp.work_off(running->warp_groups + 1);  // as early as can be; else as late
}

void end_warp_group() { ++running->warp_groups; }
void wait_warp_groups(int pending) { running->warp().work_off(running->warp_groups - pending); }

void start_copy(void* to, const void* from, int bytes) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
        fail("an asynchronous copy from or to an address that is no multiple of 16");
    if (bytes < 0 || bytes > 16) fail("an asynchronous copy of fewer than 0 or more than 16 bytes");
    const Copy copy{to, from, bytes};
    if (draw(2) == 0) {
        copy.run();  // as early as can be
    } else {
        running->open_group.push_back(copy);  // as late
    }
}

void end_group() {
    running->groups.push_back(std::move(running->open_group));
    running->open_group.clear();
}

void wait_copies(int pending) {
    std::deque<std::vector<Copy>>& groups = running->groups;
    while (static_cast<int>(groups.size()) > pending) {
        for (const Copy& copy : groups.front()) copy.run();
        groups.pop_front();
    }
}

void fail(const char* what) {
    if (running != nullptr) {
        std::fprintf(stderr, "emulator: block %d, thread %d: %s\n", running->block->index, running->index, what);
    } else {
        std::fprintf(stderr, "emulator: %s\n", what);
    }
    std::exit(3);
}

}  // namespace emulator

#include <algorithm>

#include "state.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

Grid* grid = nullptr;
Fiber* running = nullptr;

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

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int kIdleRounds = 1000;  // in which threads only look: after these none will ever see what it looks for

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

}  // namespace emulator

// What the threads of a grid call.
#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace emulator {

Warp& Fiber::warp() const { return block->warps[static_cast<size_t>(index / 32)]; }

namespace {

void yield_as(State state) {
    running->state = state;
    switch_to_scheduler(false);
}

}  // namespace

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

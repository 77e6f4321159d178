// The state of a grid that runs (grid.cpp), for what its threads call (calls.cpp).
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "grid.h"

namespace emulator {

constexpr int kNamedBarriers = 16;

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

extern Grid* grid;
extern Fiber* running;

void switch_to_scheduler(bool for_good);
void release_barrier_if_full(Block& block);
void release_cluster_if_full(Cluster& cluster);

}  // namespace emulator

// How kernels that share a token's columns out over threads are launched: how many blocks a token has and columns a
// thread, and programmatic dependent launch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/launch_kernel.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {

// Blocks of a token that exchange something: 1, 2, 4 or 8, as a cluster has them. Others may be more.
inline constexpr int kMaxParts = 8;
// Shared memory of one exchange between the blocks of a token: a word for each warp.
inline constexpr int kExchangeBytes = 4 * 32 * kMaxParts;

// Chunks of 8 columns that a block has, all but a token's last; the token has 1 << parts_log2 blocks.
NESTEDFP_HOST_DEVICE constexpr int part_chunks(int chunks, int parts_log2) {
    const int even = (chunks + (1 << parts_log2) - 1) >> parts_log2;
    return (even + 31) / 32 * 32;
}

// How many blocks a token gets. Few tokens would leave most multiprocessors idle; where nothing is exchanged, small
// blocks share out many tokens more evenly, too. To exchange something costs half a microsecond, which four blocks of
// long rows save.
constexpr int row_parts_log2(int64_t m, int64_t chunks, bool exchanges) {
    constexpr int64_t kMultiprocessors = 128, kMinChunks = 128;
    const auto fits = [&](int parts) {
        if (chunks < kMinChunks * parts) return false;
        if (exchanges) return parts <= kMaxParts && m * parts <= kMultiprocessors;
        return m * parts <= kMultiprocessors || chunks >= 2 * kMinChunks * parts;
    };
    int log2 = 0;
    while (fits(2 << log2)) ++log2;
    return exchanges && (log2 < 2 || chunks < 8 * kMinChunks) ? 0 : log2;
}

// A thread holds `chunks` chunks of 8 columns in registers between the two halves of the work. Sixteen take more
// registers than 1024 threads have.
constexpr int max_threads(int chunks) { return chunks > 8 ? 640 : 1024; }

// Calls launch(std::integral_constant<int, Chunks>, threads) for `chunks` chunks a block, at most 10,240.
template <class Launch>
cudaError_t choose_chunks(int64_t m, int64_t chunks, Launch&& launch) {
    const auto with = [&](auto per_thread) {
        return launch(per_thread, static_cast<int>(round_up((chunks + per_thread - 1) / per_thread, 32)));
    };
    // Many tokens: fewer threads each with more in flight, so that several blocks share a multiprocessor and one loads
    // while another stores. Few tokens: the latency of one block counts.
    if (m > 256) {
        if (chunks <= 1024) return with(std::integral_constant<int, 4>{});
        if (chunks <= 8192) return with(std::integral_constant<int, 8>{});
    }
    if (chunks <= 512) return with(std::integral_constant<int, 1>{});
    if (chunks <= 2048) return with(std::integral_constant<int, 2>{});
    if (chunks <= 4096) return with(std::integral_constant<int, 4>{});
    if (chunks <= 8192) return with(std::integral_constant<int, 8>{});
    return with(std::integral_constant<int, 16>{});
}

// Blocks of `threads` threads, 1 << parts_log2 for each of m tokens, in a cluster if they exchange something through so
// many bytes of shared memory. With pdl, which a GPU before Hopper cannot (nor clusters), the kernel may start while
// the one before it runs: it calls pdl_wait before it reads what that one writes.
inline Launch row_launch(int64_t m, int parts_log2, int threads, int exchange_bytes, bool pdl, cudaStream_t stream) {
    return {m << parts_log2, threads, exchange_bytes, exchange_bytes > 0 ? 1 << parts_log2 : 1, pdl, stream};
}

}  // namespace nestedfp::cuda

// Runs the products of experts on the emulated grid, by the GEMM's own sources. Standard input: 64-bit integers
// experts, n, k, rows of x, of the result, token tiles, rows of a tile, multiprocessors, seed, has scales, is gated;
// then x [rows, k], its scales, both planes [experts, n, k], the rows of the result that those of x are, the experts of
// the tiles, and the rows that are in use. Standard output: the result, FP16.
#include <algorithm>

#include "cuda/host/launch.h"
#include "operands.h"

using namespace nestedfp::cuda;
using emulator::read;

int main() {
    const std::vector<int64_t> head = read<int64_t>(11);
    const ExpertsDesc desc{head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[10] != 0};
    const int num_sms = static_cast<int>(head[7]);
    const int64_t plane_bytes = desc.experts * desc.n * desc.k;
    const std::vector<uint8_t> x = read<uint8_t>(desc.rows * desc.k * 2);
    const std::vector<float> scales = read<float>(desc.rows);
    const std::vector<uint8_t> upper = read<uint8_t>(plane_bytes), lower = read<uint8_t>(plane_bytes);
    const std::vector<int> row_ids = read<int>(desc.rows);
    const std::vector<int> tile_experts = read<int>(desc.token_tiles), padded_rows = read<int>(1);

    const int64_t outputs = desc.is_gated ? desc.rows * desc.n / 2 : desc.valid * desc.n;
    std::vector<uint16_t> out(static_cast<size_t>(outputs), 0xffff);
    if (prepare_device() != 0) emulator::fail("a tile needs more shared memory than a block may have");
    emulator::Launch& launch = emulator::launch_defaults();
    launch.seed = static_cast<unsigned>(head[8]);
    launch.resident = num_sms;
    launch.is_in_order = true;
    const char* reason = nullptr;
    int* const semaphores = stream_semaphores(nullptr);
    const ExpertsArgs args{x.data(),
                           head[9] != 0 ? scales.data() : nullptr,
                           upper.data(),
                           lower.data(),
                           out.data(),
                           row_ids.data(),
                           tile_experts.data(),
                           padded_rows.data(),
                           semaphores};
    const int no_rows = 0;  // no expert was chosen: nothing is computed, and the counters are zero for the next launch
    ExpertsArgs idle = args;
    idle.padded_rows = &no_rows;
    for (const ExpertsArgs& each : {idle, args})
        if (run_experts(desc, each, num_sms, nullptr, &reason) != 0) emulator::fail(reason);
    if (std::any_of(semaphores, semaphores + kSemaphores, [](int left) { return left != 0; }))
        emulator::fail("a semaphore is not zero after a launch");
    std::fwrite(out.data(), 2, out.size(), stdout);
    return 0;
}

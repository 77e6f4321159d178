// Runs the mixed GEMM's own sources on the emulated grid. Standard input: 64-bit integers tile, mixed blocks, split of
// the mixed tiles, of the rest, exact rows, fast rows, n, k, x pitch, multiprocessors, seed; then x [exact rows, pitch]
// FP16, codes [fast rows, k padded to 64] and their scales, canonical upper and lower plane, bias [n]. Standard output:
// the result, [rows, n] FP16; exit status 4 and none for a config that cannot compute the problem.
#include <cstring>

#include "cuda/host/launch.h"
#include "cuda/kernels/layout.h"
#include "operands.h"

using namespace nestedfp::cuda;
using emulator::read;

int main() {
    const std::vector<int64_t> head = read<int64_t>(11);
    const MixedConfig config{static_cast<int>(head[0]), static_cast<int>(head[1]), static_cast<int>(head[2]),
                             static_cast<int>(head[3])};
    const MixedDesc desc{head[4], head[5], head[6], head[7]};
    const int64_t pitch = head[8], rows = desc.exact_rows + desc.fast_rows;
    const int num_sms = static_cast<int>(head[9]);
    const std::vector<uint8_t> x = read<uint8_t>(desc.exact_rows * pitch * 2);
    const std::vector<uint8_t> codes = read<uint8_t>(desc.fast_rows * upper_pitch(desc.k));
    const std::vector<float> scale = read<float>(desc.fast_rows);
    const emulator::PackedWeight weight(desc.n, desc.k);
    const std::vector<uint16_t> bias = read<uint16_t>(desc.n);

    const char* reason = nullptr;
    MixedPlan plan;
    if (!make_plan(desc, config, num_sms, &plan, &reason)) {
        std::fprintf(stderr, "%s\n", reason);
        return 4;
    }
    std::vector<uint16_t> out(static_cast<size_t>(rows * desc.n), 0xffff);
    std::vector<float> workspace(static_cast<size_t>(plan.mixed_workspace_bytes + plan.rest_workspace_bytes) /
                                 sizeof(float));
    GemmArgs args{};
    args.x = x.data();
    args.x_pitch = pitch;
    args.codes = codes.data();
    args.token_scale = scale.data();
    args.upper = weight.upper.data();
    args.lower = weight.lower.data();
    args.bias = bias.data();
    args.out = out.data();
    args.workspace = workspace.empty() ? nullptr : workspace.data();
    if (prepare_device() != 0) emulator::fail("a tile needs more shared memory than a block may have");
    args.semaphores = stream_semaphores(nullptr);
    emulator::Launch& launch = emulator::launch_defaults();
    launch.seed = static_cast<unsigned>(head[10]);
    launch.resident = num_sms;
    launch.is_in_order = true;
    if (run_mixed(desc, config, args, num_sms, nullptr, &reason) != 0) emulator::fail(reason);
    std::fwrite(out.data(), 2, out.size(), stdout);
    return 0;
}

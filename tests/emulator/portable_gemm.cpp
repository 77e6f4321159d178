// Runs the portable GEMM's own sources on the emulated grid. Standard input: 64-bit integers operands, tile, split (0:
// the plan's choice on `multiprocessors`), m, n, k, x pitch, multiprocessors, seed; then x, token scales, canonical
// upper and lower plane, bias (one byte says whether there is one), outliers. Standard output: the result, [m, n] FP16.
#include "cuda/portable/gemm.cuh"
#include "operands.h"

using namespace nestedfp::cuda;
using emulator::read;

namespace {

template <PortableOperands Operands, int Tile>
void run(const PortableArgs& args, unsigned seed) {
    using Traits = PortableTraits<Operands, Tile>;
    if (args.plan.tile != Tile) {
        if constexpr (Tile + 1 < kPortableTileCount) run<Operands, Tile + 1>(args, seed);
        return;
    }
    emulator::Launch launch;
    launch.blocks = args.plan.blocks();
    launch.threads = Traits::kThreads;
    launch.shared_bytes = portable_shared_bytes(Operands, Traits::kTile);
    launch.seed = seed;
    launch.resident = 1 + static_cast<int>(seed % 3);
    emulator::run_grid(launch, [&] { portable_gemm<Traits>(args); });
}

}  // namespace

int main() {
    const std::vector<int64_t> head = read<int64_t>(9);
    const auto operands = static_cast<PortableOperands>(head[0]);
    const int64_t m = head[3], n = head[4], k = head[5], pitch = head[6];
    const bool is_fp8 = operands == PortableOperands::kFp8;
    const std::vector<uint8_t> x = read<uint8_t>(is_fp8 ? m * pitch : ((m - 1) * pitch + k) * 2);
    const std::vector<float> scale = read<float>(is_fp8 ? m : 0);
    emulator::PackedWeight weight(n, k);
    weight.lower.resize(static_cast<size_t>(neutral_offset(n, k)));
    weight.lower.shrink_to_fit();
    const bool has_bias = read<uint8_t>(1)[0] != 0;
    const std::vector<uint16_t> bias = read<uint16_t>(has_bias ? n : 0);
    const emulator::Outliers outliers;

    PortableArgs args{};
    const int num_sms = static_cast<int>(head[7]);
    args.plan = head[2] == 0 ? plan_portable(operands, m, n, k, num_sms)
                             : cut_portable(operands, m, n, k, static_cast<int>(head[1]), static_cast<int>(head[2]));
    std::vector<uint16_t> out(static_cast<size_t>(m * n), 0xffff);
    std::vector<float> workspace(static_cast<size_t>(portable_workspace_bytes(args.plan) / 4));
    std::vector<int> semaphores(args.plan.split > 1 ? static_cast<size_t>(args.plan.tiles()) : 0, 0);
    args.x = x.data();
    args.x_pitch = pitch;
    args.token_scale = scale.data();
    args.upper = weight.upper.data();
    args.lower = operands == PortableOperands::kExact ? weight.lower.data() : nullptr;
    args.bias = has_bias ? bias.data() : nullptr;
    args.out = out.data();
    args.outliers = outliers.list(x.data(), pitch);
    args.workspace = workspace.data();
    args.semaphores = semaphores.data();
    args.m = m;
    args.n = n;
    args.k = k;
    args.upper_pitch = upper_pitch(k);
    args.lower_row_blocks = lower_row_blocks(n);
    args.lower_col_blocks = lower_col_blocks(k);
    const auto seed = static_cast<unsigned>(head[8]);
    if (operands == PortableOperands::kExact) run<PortableOperands::kExact, 0>(args, seed);
    if (operands == PortableOperands::kUpperFp16) run<PortableOperands::kUpperFp16, 0>(args, seed);
    if (operands == PortableOperands::kFp8) run<PortableOperands::kFp8, 0>(args, seed);
    for (const int semaphore : semaphores) {
        if (semaphore != 0) emulator::fail("a semaphore is left behind");
    }
    std::fwrite(out.data(), 2, out.size(), stdout);
    return 0;
}

// Runs the portable GEMM's own sources on the emulated grid. Standard input: 64-bit integers operands, tile, split (0:
// the plan's choice on `multiprocessors`), m, n, k, x pitch, multiprocessors, seed; then x, token scales, canonical
// upper and lower plane, bias (one byte says whether there is one). Standard output: the result, [m, n] FP16.
#include <cstdio>
#include <vector>

#include "cuda/portable/gemm.cuh"

using namespace nestedfp::cuda;

namespace {

// Exactly as long as the kernel may read, for the address sanitizer.
template <class T>
std::vector<T> read(int64_t count) {
    std::vector<T> data(static_cast<size_t>(count));
    if (std::fread(data.data(), sizeof(T), data.size(), stdin) != data.size()) emulator::fail("the input is too short");
    return data;
}

void pack(const std::vector<uint8_t>& upper, const std::vector<uint8_t>& lower, int64_t n, int64_t k,
          std::vector<uint8_t>& packed_upper, std::vector<uint8_t>& packed_lower) {
    packed_upper.assign(static_cast<size_t>(n * upper_pitch(k)), 0);
    packed_lower.assign(static_cast<size_t>(neutral_offset(n, k)), 0);
    for (int64_t at = 0; at < neutral_offset(n, k); ++at) {
        const int64_t row_block = at / kBlockBytes / lower_col_blocks(k),
                      col_block = at / kBlockBytes % lower_col_blocks(k);
        const int byte = static_cast<int>(at % kBlockBytes), position = byte % 64;
        const int64_t row = row_block * kBlockRows + byte / 64, col = col_block * kBlockCols + column_of(position);
        const bool is_inside = row < n && col < k;
        const auto from = static_cast<size_t>(row * k + col);
        packed_lower[static_cast<size_t>(at)] = encode_lower(is_inside ? lower[from] : 0, position);
        if (is_inside)
            packed_upper[static_cast<size_t>(row * upper_pitch(k) + col_block * kBlockCols + position)] = upper[from];
    }
}

template <PortableOperands Operands, int Tile>
void run(const PortableArgs& args, unsigned seed) {
    using Traits = PortableTraits<Operands, Tile>;
    if (args.plan.tile != Tile) {
        if constexpr (Tile + 1 < kPortableTileCount) run<Operands, Tile + 1>(args, seed);
        return;
    }
    emulator::run_grid(args.plan.blocks(), Traits::kThreads, portable_shared_bytes(Operands, Traits::kTile), seed,
                       [&] { portable_gemm<Traits>(args); });
}

}  // namespace

int main() {
    const std::vector<int64_t> head = read<int64_t>(9);
    const auto operands = static_cast<PortableOperands>(head[0]);
    const int64_t m = head[3], n = head[4], k = head[5], pitch = head[6];
    const bool is_fp8 = operands == PortableOperands::kFp8;
    const std::vector<uint8_t> x = read<uint8_t>(is_fp8 ? m * pitch : ((m - 1) * pitch + k) * 2);
    const std::vector<float> scale = read<float>(is_fp8 ? m : 0);
    std::vector<uint8_t> packed_upper, packed_lower;
    {
        const std::vector<uint8_t> upper = read<uint8_t>(n * k), lower = read<uint8_t>(n * k);
        pack(upper, lower, n, k, packed_upper, packed_lower);
    }
    const bool has_bias = read<uint8_t>(1)[0] != 0;
    const std::vector<uint16_t> bias = read<uint16_t>(has_bias ? n : 0);

    PortableArgs args{};
    const int num_sms = static_cast<int>(head[7]);
    args.plan = head[2] == 0 ? plan_portable(operands, m, n, k, num_sms, true)
                             : cut_portable(operands, m, n, k, static_cast<int>(head[1]), static_cast<int>(head[2]));
    std::vector<uint16_t> out(static_cast<size_t>(m * n), 0xffff);
    std::vector<float> workspace(static_cast<size_t>(portable_workspace_bytes(args.plan) / 4));
    std::vector<int> semaphores(args.plan.split > 1 ? static_cast<size_t>(args.plan.tiles()) : 0, 0);
    args.x = x.data();
    args.x_pitch = pitch;
    args.token_scale = scale.data();
    args.upper = packed_upper.data();
    args.lower = operands == PortableOperands::kExact ? packed_lower.data() : nullptr;
    args.bias = has_bias ? bias.data() : nullptr;
    args.out = out.data();
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

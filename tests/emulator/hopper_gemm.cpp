// Runs the Hopper GEMM's own sources, host and device, on the emulated grid. Standard input: 64-bit integers precision,
// tile, split, tail only, global workspace, neutral lower plane, m, n, k, x pitch, multiprocessors, seed; then x, token
// scales, canonical upper and lower plane, bias (one byte says whether there is one), outliers. Standard output: the
// result, [m, n] FP16; exit status 4 and none for a config that cannot compute the problem.
//
// x and scales are there, and what the kernel writes is free, only once the kernel before this one has ended.
#include <algorithm>
#include <cstring>

#include "cuda/host/launch.h"
#include "operands.h"

using namespace nestedfp::cuda;
using emulator::read;

namespace {

// Values that are NaN until the kernel before this one has ended.
template <class T>
class Later {
  public:
    explicit Later(std::vector<T> values) : values_(std::move(values)), now_(values_.size()) { forget(); }

    const T* data() const { return now_.data(); }
    void arrive() { now_ = values_; }

  private:
    void forget() { std::memset(now_.data(), 0xff, now_.size() * sizeof(T)); }

    std::vector<T> values_, now_;
};

template <class T>
class Written {
  public:
    explicit Written(int64_t count) : values(static_cast<size_t>(count)) {
        std::memset(values.data(), 0xff, values.size() * sizeof(T));
    }

    void check_untouched() const {
        const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
        if (!std::all_of(bytes, bytes + values.size() * sizeof(T), [](uint8_t byte) { return byte == 0xff; }))
            emulator::fail("the kernel has written what the kernel before it may still read");
    }

    std::vector<T> values;
};

}  // namespace

int main() {
    const std::vector<int64_t> head = read<int64_t>(12);
    const auto precision = static_cast<nestedfp::Precision>(head[0]);
    const GemmConfig config{static_cast<int>(head[1]), static_cast<int>(head[2]), head[3] != 0, head[4] != 0};
    const int64_t m = head[6], n = head[7], k = head[8], pitch = head[9];
    const GemmDesc desc{precision, m, n, k};
    const int num_sms = static_cast<int>(head[10]);
    const bool is_fp8 = precision == nestedfp::Precision::kFp8;
    Later<uint8_t> x(read<uint8_t>(is_fp8 ? m * pitch : ((m - 1) * pitch + k) * 2));
    Later<float> scale(read<float>(is_fp8 ? m : 0));
    const emulator::PackedWeight weight(n, k);
    const bool has_bias = read<uint8_t>(1)[0] != 0;
    const std::vector<uint16_t> bias = read<uint16_t>(has_bias ? n : 0);
    const emulator::Outliers outliers;

    const char* reason = nullptr;
    if (!is_valid(desc, config, num_sms, &reason)) {
        std::fprintf(stderr, "%s\n", reason);
        return 4;
    }
    Written<uint16_t> out(m * n);
    Written<float> workspace(workspace_bytes(desc, config, num_sms) / 4);
    GemmArgs args{};
    args.x = x.data();
    args.x_pitch = pitch;
    args.token_scale = is_fp8 ? scale.data() : nullptr;
    args.upper = weight.upper.data();
    args.lower = is_fp8 ? nullptr : weight.lower.data();
    args.neutral_lower = head[5] != 0;
    args.bias = has_bias ? bias.data() : nullptr;
    args.out = out.values.data();
    args.outliers = outliers.list(x.data(), pitch);
    args.workspace = workspace.values.empty() ? nullptr : workspace.values.data();
    if (prepare_device() != 0) emulator::fail("a tile needs more shared memory than a block may have");
    args.semaphores = stream_semaphores(nullptr);

    emulator::Launch& launch = emulator::launch_defaults();
    launch.seed = static_cast<unsigned>(head[11]);
    const Tile& tile = kTiles[config.tile];
    const int cluster = make_plan(desc, config, num_sms).cluster * tile.multicast_ctas;
    launch.resident = std::max(1, num_sms * tile.blocks_per_sm / cluster);
    launch.is_in_order = true;
    launch.before = [&] {
        out.check_untouched();
        workspace.check_untouched();
        x.arrive();
        scale.arrive();
    };
    const int error = run_gemm(desc, config, args, num_sms, nullptr, &reason);
    if (error != 0) emulator::fail(reason);
    if (std::any_of(args.semaphores, args.semaphores + kSemaphores, [](int value) { return value != 0; }))
        emulator::fail("a semaphore is left behind");
    std::fwrite(out.values.data(), 2, out.values.size(), stdout);
    return 0;
}

// Baselines that benchmarks/weights/cpu_linear.py compares with: the same blocking over plain FP16 weights, and a plain
// read of memory.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>

#include "checks.h"
#include "cpu/ops_cpu.h"

namespace nestedfp {
namespace {

// words: [N/16, K/2 * 32] FP16 in the order [panel][k / 2][k % 2][n % 16].
Tensor plain_linear(Tensor x, Tensor words, std::optional<Tensor> bias, int64_t n, int64_t k) {
    const char* const op = "nestedfp_bench::plain_linear";
    check_cpu(op, "words", words);
    check_dtype(op, "words", words, ScalarType::Half);
    check_shape(op, "words", words, cpu::panel_count(n), cpu::pair_count(k) * cpu::kPairBytes);
    check_contiguous(op, "words", words);
    cpu::LinearArgs args{};
    args.n = n;
    args.k = k;
    args.upper = static_cast<const uint8_t*>(words.const_data_ptr());
    return run_linear(op, x, bias, args, cpu::Weights::kPlain, false);
}

int64_t read(Tensor data) {
    const char* const op = "nestedfp_bench::read";
    constexpr int64_t kUnit = 4096;
    check_cpu(op, "data", data);
    check_contiguous(op, "data", data);
    const int64_t bytes = data.numel() * static_cast<int64_t>(data.element_size());
    STD_TORCH_CHECK(bytes % kUnit == 0, op, ": expected a multiple of ", kUnit, " bytes, got ", bytes);
    const auto* const start = static_cast<const uint8_t*>(data.const_data_ptr());
    const cpu::Kernels& kernels = cpu::kernels();
    std::atomic<uint64_t> sum{0};
    torch::stable::parallel_for(0, bytes / kUnit, 1, [&](int64_t begin, int64_t end) {
        sum += kernels.read(start + begin * kUnit, (end - begin) * kUnit);
    });
    return static_cast<int64_t>(sum.load() >> 1);
}

}  // namespace
}  // namespace nestedfp

STABLE_TORCH_LIBRARY(nestedfp_bench, m) {
    m.def("plain_linear(Tensor x, Tensor words, Tensor? bias, int n, int k) -> Tensor");
    m.def("read(Tensor data) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(nestedfp_bench, CPU, m) {
    m.impl("plain_linear", TORCH_BOX(&nestedfp::plain_linear));
    m.impl("read", TORCH_BOX(&nestedfp::read));
}

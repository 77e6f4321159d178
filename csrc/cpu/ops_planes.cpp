// The ops that make and rearrange planes: split, join, pack, join_rows. They run once per layer, while
// loading or offline.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "checks.h"
#include "cpu/kernels/kernels.h"
#include "format.h"

namespace nestedfp {
namespace {

// Two planes of one matrix.
void check_planes(const char* op, const Tensor& upper, const Tensor& lower) {
    check_cpu(op, "upper", upper);
    check_cpu(op, "lower", lower);
    check_dtype(op, "upper", upper, ScalarType::Byte);
    check_dtype(op, "lower", lower, ScalarType::Byte);
    check_matrix(op, "upper", upper);
    check_shape(op, "lower", lower, upper.size(0), upper.size(1));
    check_contiguous(op, "upper", upper);
    check_contiguous(op, "lower", lower);
}

// Elements per task: large enough to hide the cost of a task, small enough to balance.
constexpr int64_t kGrain = 1 << 16;

uint8_t* bytes_of(const Tensor& tensor) { return static_cast<uint8_t*>(tensor.mutable_data_ptr()); }

const uint8_t* const_bytes_of(const Tensor& tensor) { return static_cast<const uint8_t*>(tensor.const_data_ptr()); }

// Where a weight's byte is in a plane of panels (cpu/kernels/kernels.h).
int64_t packed_place(int64_t row, int64_t col, int64_t k) {
    const int64_t pair = row / cpu::kPanel * cpu::pair_count(k) + col / 2;
    return pair * cpu::kPairBytes + row % cpu::kPanel * 2 + col % 2;
}

// Pairs of one panel are transposed from rows to panel order in blocks, small enough for the first-level cache, so that
// memory is read and written in whole lines.
constexpr int64_t kBlockPairs = 32;

// A plane's pairs [pair_begin, pair_end) of the panel whose `row_count` rows begin at `rows`, through `convert` (a byte
// to a byte); what lies past the rows or columns is 0.
template <class Convert>
void pack_block(const uint8_t* rows, int64_t row_count, int64_t k, int64_t pair_begin, int64_t pair_end, uint8_t* panel,
                const Convert& convert) {
    uint8_t block[cpu::kPanel][2 * kBlockPairs] = {};
    const int64_t columns = std::min(2 * pair_end, k) - 2 * pair_begin;
    for (int64_t row = 0; row < row_count; ++row) {
        const uint8_t* const in = rows + row * k + 2 * pair_begin;
        for (int64_t i = 0; i < columns; ++i) block[row][i] = convert(in[i]);
    }
    for (int64_t pair = pair_begin; pair < pair_end; ++pair) {
        for (int64_t row = 0; row < cpu::kPanel; ++row) {
            std::memcpy(panel + pair * cpu::kPairBytes + 2 * row, &block[row][2 * (pair - pair_begin)], 2);
        }
    }
}

Tensor empty_bytes(const Tensor& like, int64_t rows, int64_t cols) {
    const int64_t shape[] = {rows, cols};
    return torch::stable::new_empty(like, {shape, 2}, ScalarType::Byte);
}

std::tuple<Tensor, Tensor, Tensor> split_cpu(Tensor weight) {
    const char* const op = "nestedfp::split";
    check_cpu(op, "weight", weight);
    check_dtype(op, "weight", weight, ScalarType::Half);
    check_matrix(op, "weight", weight);
    check_contiguous(op, "weight", weight);
    const Tensor upper = empty_bytes(weight, weight.size(0), weight.size(1));
    const Tensor lower = empty_bytes(weight, weight.size(0), weight.size(1));
    const int64_t counts_shape[] = {2};
    const Tensor counts = torch::stable::new_empty(weight, {counts_shape, 1}, ScalarType::Long);

    const auto* const words = static_cast<const uint16_t*>(weight.const_data_ptr());
    uint8_t* const upper_bytes = bytes_of(upper);
    uint8_t* const lower_bytes = bytes_of(lower);
    std::atomic<int64_t> outliers{0};
    std::atomic<int64_t> nonfinite{0};
    const cpu::Kernels& kernels = cpu::kernels();
    torch::stable::parallel_for(0, weight.numel(), kGrain, [&](int64_t begin, int64_t end) {
        const cpu::SplitCounts part =
            kernels.split(words + begin, upper_bytes + begin, lower_bytes + begin, end - begin);
        outliers += part.outliers;
        nonfinite += part.nonfinite;
    });
    int64_t* const totals = static_cast<int64_t*>(counts.mutable_data_ptr());
    totals[0] = outliers;
    totals[1] = nonfinite;
    return {upper, lower, counts};
}

Tensor join_cpu(Tensor upper, Tensor lower) {
    const char* const op = "nestedfp::join";
    check_planes(op, upper, lower);
    const int64_t shape[] = {upper.size(0), upper.size(1)};
    const Tensor weight = torch::stable::new_empty(upper, {shape, 2}, ScalarType::Half);
    const uint8_t* const high = const_bytes_of(upper);
    const uint8_t* const low = const_bytes_of(lower);
    auto* const words = static_cast<uint16_t*>(weight.mutable_data_ptr());
    torch::stable::parallel_for(0, upper.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) words[i] = join(high[i], low[i]);
    });
    return weight;
}

std::tuple<Tensor, Tensor> pack_cpu(Tensor upper, Tensor lower) {
    const char* const op = "nestedfp::pack";
    check_planes(op, upper, lower);
    const int64_t n = upper.size(0);
    const int64_t k = upper.size(1);
    const Tensor packed_upper = empty_bytes(upper, cpu::panel_count(n), cpu::pair_count(k) * cpu::kPairBytes);
    const Tensor packed_lower = empty_bytes(upper, cpu::panel_count(n), cpu::pair_count(k) * cpu::kPairBytes);
    const uint8_t* const upper_in = const_bytes_of(upper);
    const uint8_t* const lower_in = const_bytes_of(lower);
    uint8_t* const upper_out = bytes_of(packed_upper);
    uint8_t* const lower_out = bytes_of(packed_lower);
    const int64_t pairs = cpu::pair_count(k);
    torch::stable::parallel_for(
        0, cpu::panel_count(n), kGrain / (cpu::kPanel * k) + 1, [&](int64_t begin, int64_t end) {
            for (int64_t panel = begin; panel < end; ++panel) {
                const int64_t rows = std::min<int64_t>(cpu::kPanel, n - panel * cpu::kPanel);
                const int64_t in = panel * cpu::kPanel * k;
                const int64_t out = panel * pairs * cpu::kPairBytes;
                for (int64_t pair = 0; pair < pairs; pair += kBlockPairs) {
                    const int64_t stop = std::min(pair + kBlockPairs, pairs);
                    pack_block(upper_in + in, rows, k, pair, stop, upper_out + out, [](uint8_t byte) { return byte; });
                    pack_block(lower_in + in, rows, k, pair, stop, lower_out + out, lower_to_residual);
                }
            }
        });
    return {packed_upper, packed_lower};
}

Tensor join_rows_cpu(Tensor upper, Tensor lower, int64_t n, int64_t k, int64_t first_row, int64_t rows) {
    const char* const op = "nestedfp::join_rows";
    STD_TORCH_CHECK(n >= 1 && k >= 1 && first_row >= 0 && rows >= 1 && first_row + rows <= n, op,
                    ": expected n, k >= 1 and rows of 0 to n, got n=", n, ", k=", k, ", ", rows, " rows from ",
                    first_row, " on");
    check_planes(op, upper, lower);
    check_shape(op, "upper from nestedfp::pack", upper, cpu::panel_count(n), cpu::pair_count(k) * cpu::kPairBytes);
    const int64_t shape[] = {rows, k};
    const Tensor weight = torch::stable::new_empty(upper, {shape, 2}, ScalarType::Half);
    const uint8_t* const high = const_bytes_of(upper);
    const uint8_t* const low = const_bytes_of(lower);
    auto* const words = static_cast<uint16_t*>(weight.mutable_data_ptr());
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < k; ++col) {
            const int64_t place = packed_place(first_row + row, col, k);
            words[row * k + col] = join_residual(high[place], static_cast<int8_t>(low[place]));
        }
    }
    return weight;
}

}  // namespace
}  // namespace nestedfp

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CPU, m) {
    m.impl("split", TORCH_BOX(&nestedfp::split_cpu));
    m.impl("join", TORCH_BOX(&nestedfp::join_cpu));
    m.impl("pack", TORCH_BOX(&nestedfp::pack_cpu));
    m.impl("join_rows", TORCH_BOX(&nestedfp::join_rows_cpu));
}

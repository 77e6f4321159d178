// The linear op on CPU tensors: checks, scratch, and how the work is cut into tiles. Arithmetic lives in cpu/kernels/.
#include <torch/csrc/stable/library.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "checks.h"
#include "cpu/kernels/kernels.h"
#include "mode.h"

namespace nestedfp {
namespace {

// Multiply-adds below which another thread costs more than it saves (a few microseconds of work).
constexpr int64_t kWorkPerThread = 1 << 17;

// FP32 activations that are packed at a time: bounds the scratch memory of long prefills to 16 MiB.
constexpr int64_t kPackedFloats = int64_t{4} << 20;

// Packed activations of this size stay in a second-level cache while all panels pass by.
constexpr int64_t kCachedFloats = int64_t{64} << 10;

cpu::Element element_of(const char* op, const char* name, const Tensor& tensor) {
    const bool is_half = tensor.scalar_type() == ScalarType::Half;
    STD_TORCH_CHECK(is_half || tensor.scalar_type() == ScalarType::Float, op, ": expected ", name,
                    " of dtype Half or Float, got ", name_of(tensor.scalar_type()));
    return is_half ? cpu::Element::kHalf : cpu::Element::kFloat;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Tensor as_contiguous(const Tensor& tensor) {
    return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// Scratch memory, aligned for the widest vectors and left uninitialised. Not a tensor: an allocation through the
// dispatcher costs more than a small layer's arithmetic.
class FloatBuffer {
  public:
    explicit FloatBuffer(int64_t count)
        : data_(static_cast<float*>(std::aligned_alloc(64, ceil_div(count * sizeof(float), 64) * 64))) {
        STD_TORCH_CHECK(data_ != nullptr, "nestedfp: out of memory for ", count * sizeof(float), " bytes of scratch");
    }
    FloatBuffer(const FloatBuffer&) = delete;
    FloatBuffer& operator=(const FloatBuffer&) = delete;
    ~FloatBuffer() { std::free(data_); }
    float* data() const { return data_; }

  private:
    float* data_;
};

// One row block: threads share the panels. Every panel is read once, front to back.
void run_decode(const cpu::Kernels& kernels, const cpu::LinearArgs& args, cpu::Weights weights) {
    const int64_t panels = cpu::panel_count(args.n);
    const int64_t grain = ceil_div(kWorkPerThread, args.m * args.k * cpu::kPanel);
    const auto linear = kernels.linear[static_cast<int>(weights)];
    torch::stable::parallel_for(0, panels, grain,
                                [&](int64_t begin, int64_t end) { linear(args, {begin, end, 0, 1}); });
}

// Several row blocks: threads share a grid of tiles.
void run_prefill(const cpu::Kernels& kernels, const cpu::LinearArgs& args, cpu::Weights weights) {
    const int64_t panels = cpu::panel_count(args.n);
    const int64_t blocks = cpu::block_count(args.m, kernels.block_rows);
    const int64_t row_tiles = ceil_div(blocks, cpu::kMaxTileRows / kernels.block_rows);
    // Narrower tiles when there would be too few to go round; the results do not depend on it.
    const int64_t wanted_tiles = 4 * static_cast<int64_t>(torch::stable::get_num_threads());
    // One panel at a time, front to back, while X stays in cache anyway.
    const bool cached = args.m * args.k <= kCachedFloats;
    int64_t tile_panels = cached ? 1 : cpu::kMaxTilePanels;
    while (tile_panels > 1 && row_tiles * ceil_div(panels, tile_panels) < wanted_tiles) tile_panels /= 2;
    const int64_t panel_tiles = ceil_div(panels, tile_panels);
    const int64_t tile_work = args.m / row_tiles * args.k * tile_panels * cpu::kPanel;
    const auto linear = kernels.linear[static_cast<int>(weights)];
    torch::stable::parallel_for(
        0, row_tiles * panel_tiles, ceil_div(kWorkPerThread, tile_work), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t row_tile = i / panel_tiles;
                const int64_t panel = i % panel_tiles * tile_panels;
                linear(args, {panel, panel + tile_panels < panels ? panel + tile_panels : panels,
                              cpu::block_begin(blocks, row_tiles, row_tile),
                              cpu::block_begin(blocks, row_tiles, row_tile + 1)});
            }
        });
}

// `rows` rows of x from `first_row` on.
void run_rows(const cpu::Kernels& kernels, cpu::LinearArgs args, cpu::Weights weights, bool quantize, int64_t first_row,
              int64_t rows, int64_t element_bytes, float* packed, float* token_scale) {
    args.m = rows;
    args.x = static_cast<const char*>(args.x) + first_row * args.k * element_bytes;
    args.out = static_cast<char*>(args.out) + first_row * args.n * element_bytes;
    args.packed_x = packed;
    args.token_scale = quantize ? token_scale : nullptr;
    const cpu::PackRowsArgs pack{args.x, args.element, rows, args.k, quantize, packed, token_scale};
    const int64_t blocks = cpu::block_count(rows, kernels.block_rows);
    if (blocks == 1) {
        kernels.pack_rows(pack, 0, 1);
        run_decode(kernels, args, weights);
    } else {
        torch::stable::parallel_for(0, blocks, ceil_div(kWorkPerThread / 16, args.k * kernels.block_rows),
                                    [&](int64_t begin, int64_t end) { kernels.pack_rows(pack, begin, end); });
        run_prefill(kernels, args, weights);
    }
}

void check_x(const char* op, const Tensor& x, int64_t k) {
    check_cpu(op, "x", x);
    STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == k, op, ": expected x of shape [..., k=", k, "], got ",
                    shape_of(x));
}

Tensor empty_out(const Tensor& x, int64_t n) {
    std::vector<int64_t> shape;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) shape.push_back(x.size(i));
    shape.push_back(n);
    return torch::stable::new_empty(x, {shape.data(), shape.size()});
}

// A mixed step: run(rows, is_exact) on its exact rows side by side, then on the others.
template <class Run>
Tensor run_by_row(const Tensor& x, int64_t n, int64_t k, Run&& run) {
    const Tensor from = as_contiguous(x), out = empty_out(x, n);
    const auto row_bytes = [&](int64_t columns) { return columns * static_cast<int64_t>(x.element_size()); };
    const auto row_of = [](const Tensor& rows, int64_t row, int64_t bytes) {
        return static_cast<char*>(rows.mutable_data_ptr()) + row * bytes;
    };
    for (const uint8_t is_exact : {1, 0}) {
        std::vector<int64_t> rows;
        for (size_t i = 0; i < exact_mask().size(); ++i) {
            if (exact_mask()[i] == is_exact) rows.push_back(static_cast<int64_t>(i));
        }
        const int64_t shape[] = {static_cast<int64_t>(rows.size()), k};
        const Tensor part = torch::stable::new_empty(x, {shape, 2});
        for (size_t i = 0; i < rows.size(); ++i)
            std::memcpy(row_of(part, i, row_bytes(k)), row_of(from, rows[i], row_bytes(k)), row_bytes(k));
        const Tensor results = run(part, is_exact == 1);
        for (size_t i = 0; i < rows.size(); ++i)
            std::memcpy(row_of(out, rows[i], row_bytes(n)), row_of(results, i, row_bytes(n)), row_bytes(n));
    }
    return out;
}

// Checks bias, fills in what depends on it and on x, and runs the kernels over torch's thread pool. The caller has set
// n, k, the weights and the outliers.
Tensor run_linear(const char* op, const Tensor& x, const std::optional<Tensor>& bias, cpu::LinearArgs args,
                  cpu::Weights weights, bool quantize_activations) {
    args.element = element_of(op, "x", x);
    std::optional<Tensor> contiguous_bias;
    if (bias.has_value()) {
        check_cpu(op, "bias", *bias);
        check_vector(op, "bias", *bias, args.n);
        args.bias_element = element_of(op, "bias", *bias);
        contiguous_bias = as_contiguous(*bias);
        args.bias = contiguous_bias->const_data_ptr();
    }
    const Tensor out = empty_out(x, args.n);
    const int64_t m = x.numel() / args.k;
    if (m == 0) return out;

    const Tensor contiguous_x = as_contiguous(x);
    args.x = contiguous_x.const_data_ptr();
    args.out = out.mutable_data_ptr();

    const cpu::Kernels& kernels = cpu::kernels();
    const int64_t padded_k = 2 * cpu::pair_count(args.k);
    const int64_t fitting = ceil_div(kPackedFloats, padded_k * cpu::kMaxTileRows) * cpu::kMaxTileRows;
    const int64_t chunk = m < fitting ? m : fitting;
    const FloatBuffer scratch(chunk * padded_k + chunk);  // packed rows, then their scales
    for (int64_t row = 0; row < m; row += chunk) {
        run_rows(kernels, args, weights, quantize_activations, row, m - row < chunk ? m - row : chunk,
                 static_cast<int64_t>(x.element_size()), scratch.data(), scratch.data() + chunk * padded_k);
    }
    return out;
}

Tensor linear_cpu(Tensor x, Tensor upper, Tensor lower, std::optional<Tensor> bias, std::optional<Tensor> outlier_rows,
                  std::optional<Tensor> outlier_cols, std::optional<Tensor> outlier_deltas, int64_t n, int64_t k,
                  bool quantize_activations, bool is_exact_always) {
    const char* const op = "nestedfp::linear";
    STD_TORCH_CHECK(n >= 1 && k >= 1, op, ": expected n, k >= 1, got n=", n, ", k=", k);
    const int64_t panels = cpu::panel_count(n);
    const int64_t panel_bytes = cpu::pair_count(k) * cpu::kPairBytes;
    check_cpu(op, "upper", upper);
    check_dtype(op, "upper", upper, ScalarType::Byte);
    check_shape(op, "upper from nestedfp::pack", upper, panels, panel_bytes);
    check_contiguous(op, "upper", upper);
    check_x(op, x, k);
    const int64_t m = x.numel() / k;
    const int64_t exact = is_exact_always ? m : mode_in_force().exact_of(m);
    check_cpu(op, "lower", lower);
    check_dtype(op, "lower", lower, ScalarType::Byte);
    check_shape(op, "lower from nestedfp::pack", lower, panels, panel_bytes);
    check_contiguous(op, "lower", lower);

    cpu::LinearArgs args{};
    args.n = n;
    args.k = k;
    check_outlier_lists(op, outlier_rows, outlier_cols, outlier_deltas, check_cpu);
    if (outlier_rows.has_value()) {
        const int64_t count = outlier_rows->numel();
        args.outliers = count;
        args.outlier_rows = static_cast<const int32_t*>(outlier_rows->const_data_ptr());
        args.outlier_cols = static_cast<const int32_t*>(outlier_cols->const_data_ptr());
        args.outlier_deltas = static_cast<const float*>(outlier_deltas->const_data_ptr());
        // The lists index memory, so they are checked even though nobody but nestedfp/nested_weight.py should make
        // them.
        for (int64_t i = 0; i < count; ++i) {
            const int32_t row = args.outlier_rows[i];
            const int32_t col = args.outlier_cols[i];
            STD_TORCH_CHECK(row >= (i > 0 ? args.outlier_rows[i - 1] : 0) && row < n && col >= 0 && col < k, op,
                            ": expected outliers inside [", n, ", ", k, "] in ascending order of row, got (", row, ", ",
                            col, ") at index ", i);
        }
    }

    args.upper = static_cast<const uint8_t*>(upper.const_data_ptr());
    const auto run = [&](const Tensor& rows, bool is_exact) {
        args.residual = is_exact ? static_cast<const int8_t*>(lower.const_data_ptr()) : nullptr;
        return run_linear(op, rows, bias, args, is_exact ? cpu::Weights::kFp16 : cpu::Weights::kFp8,
                          quantize_activations && !is_exact);
    };
    if (exact == 0 || exact == m) return run(x, exact > 0);
    return run_by_row(x, n, k, run);
}

// A CPU's carrier holds FP16 activations in both modes: they are quantised here.
Tensor linear_carried_cpu(Tensor carrier, Tensor scales, Tensor upper, Tensor lower, std::optional<Tensor> bias,
                          int64_t n, int64_t k) {
    const char* const op = "nestedfp::linear_carried";
    check_cpu(op, "carrier", carrier);
    STD_TORCH_CHECK(carrier.dim() >= 1 && carrier.size(carrier.dim() - 1) == k, op,
                    ": expected carrier of shape [..., k=", k, "], got ", shape_of(carrier));
    check_carried_columns(op, k, std::numeric_limits<int32_t>::max());
    check_contiguous(op, "carrier as the operator before it made it", carrier);
    check_cpu(op, "scales", scales);
    check_scales(op, scales, carrier);
    return linear_cpu(carrier, upper, lower, bias, std::nullopt, std::nullopt, std::nullopt, n, k, true, false);
}

}  // namespace
}  // namespace nestedfp

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CPU, m) {
    m.impl("linear", TORCH_BOX(&nestedfp::linear_cpu));
    m.impl("linear_carried", TORCH_BOX(&nestedfp::linear_carried_cpu));
}

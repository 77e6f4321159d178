// The linear ops on CUDA tensors: checks, output and scratch memory, and which kernels run.
#include <optional>

#include "cuda/host/launch.h"
#include "cuda/host/tensors.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"
#include "cuda/portable/launch.h"

namespace nestedfp::cuda {
namespace {

// A layer's operands beside x.
struct Layer {
    const Tensor& upper;
    const Tensor& lower;
    const std::optional<Tensor>& bias;
    int64_t n, k;
};

// x: of FP16, or a carrier of codes.
void check_operands(const char* op, const char* name, const Tensor& x, const Layer& layer, const Device& device) {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Half, op, ": expected ", name, " of dtype Half on a GPU, got ",
                    name_of(x.scalar_type()), "; run the model with dtype float16");
    STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == layer.k, op, ": expected ", name,
                    " of shape [..., k=", layer.k, "], got ", shape_of(x));
    check_packed_upper(op, layer.upper, layer.n, layer.k, device);
    check_packed_lower(op, layer.lower, layer.n, layer.k, device);
    if (layer.bias.has_value()) {
        check_device(op, "bias", *layer.bias, device);
        check_dtype(op, "bias", *layer.bias, ScalarType::Half);
        check_vector(op, "bias", *layer.bias, layer.n);
        check_contiguous(op, "bias", *layer.bias);
    }
}

// Rows of x and of out that run in one precision.
struct Rows {
    // [M, K] FP16; with token_scale its bytes are codes [M, upper_pitch(K)].
    const void* x;
    const float* token_scale;
    void* out;
    int64_t m;
};

// Of a layer; out: of the rows that run.
GemmArgs args_of(const Layer& layer, void* out, const Device& device) {
    GemmArgs args{};
    args.x_pitch = layer.k;
    args.upper = const_data<uint8_t>(layer.upper);
    args.lower = const_data<uint8_t>(layer.lower);
    args.bias = layer.bias.has_value() ? layer.bias->const_data_ptr() : nullptr;
    args.out = out;
    args.semaphores = stream_semaphores(device.stream());
    STD_TORCH_CHECK(args.semaphores != nullptr, "nestedfp::linear: expected 64 CUDA streams at most that multiply");
    return args;
}

// out = x @ W.T + bias. like: a tensor on the device.
void multiply(const char* op, const Tensor& like, const Rows& rows, const Layer& layer, const OutlierList& outliers,
              bool is_fp8, bool quantize_activations, const Device& device) {
    const int64_t m = rows.m, n = layer.n, k = layer.k;
    const GpuTraits& gpu = device.traits();
    // The activations of FP8 mode, where the tensor cores know E4M3; else FP16 ones multiply the FP8 weights.
    const bool is_fp8_gemm = is_fp8 && quantize_activations && gpu.has_fp8();
    const GemmDesc desc{is_fp8_gemm ? Precision::kFp8 : Precision::kFp16, m, n, k};
    GemmArgs args = args_of(layer, rows.out, device);
    args.x = rows.x;
    args.neutral_lower = is_fp8;
    args.outliers = outliers;
    const bool is_portable = gpu.is_portable();
    const PortableOperands operands = !is_fp8       ? PortableOperands::kExact
                                      : is_fp8_gemm ? PortableOperands::kFp8
                                                    : PortableOperands::kUpperFp16;
    const PortablePlan plan = is_portable ? plan_portable(operands, m, n, k, gpu.num_sms) : PortablePlan{};
    const GemmConfig config = is_portable ? GemmConfig{} : choose_config(desc, gpu.num_sms);

    // One allocation for all scratch memory: partial sums, then the activations as the GEMM reads them, then their
    // scales. torch's allocator keeps it in stream order.
    const bool is_quantized = is_fp8_gemm && rows.token_scale == nullptr;
    // TMA and asynchronous copies read rows that begin at multiples of 16 bytes.
    const bool is_copied = !is_fp8_gemm && (k % 8 != 0 || reinterpret_cast<uintptr_t>(args.x) % 16 != 0);
    const int64_t pitch = is_fp8_gemm ? upper_pitch(k) : round_up(k, 8);
    const int64_t sums_bytes =
        round_up(is_portable ? portable_workspace_bytes(plan) : workspace_bytes(desc, config, gpu.num_sms), 256);
    const int64_t x_bytes = is_quantized ? round_up(m * pitch, 256) : is_copied ? m * pitch * 2 : 0;
    const int64_t scratch_bytes = sums_bytes + x_bytes + (is_quantized ? m * 4 : 0);
    std::optional<Tensor> scratch;
    if (scratch_bytes > 0) {
        scratch = empty(like, {scratch_bytes}, ScalarType::Byte);
        uint8_t* const sums = data<uint8_t>(*scratch);
        uint8_t* const copy = sums + sums_bytes;
        if (sums_bytes > 0) args.workspace = reinterpret_cast<float*>(sums);
        if (is_quantized) {
            auto* const scale = reinterpret_cast<float*>(copy + x_bytes);
            check_error(op, run_quantize(args.x, k, copy, scale, m, k, gpu.has_pdl(), device.stream()));
            args.token_scale = scale;
        } else if (is_copied) {
            check_error(op, cudaMemcpy2DAsync(copy, pitch * 2, args.x, k * 2, k * 2, m, cudaMemcpyDeviceToDevice,
                                              device.stream()));
        }
        if (is_quantized || is_copied) {
            args.x = copy;
            args.x_pitch = pitch;
        }
    }
    if (rows.token_scale != nullptr) {
        args.x_pitch = pitch;
        args.token_scale = rows.token_scale;
    }
    const char* message = "";
    const int error = is_portable ? run_portable(desc, operands, plan, args, device.stream(), &message)
                                  : run_gemm(desc, config, args, gpu.num_sms, device.stream(), &message);
    STD_TORCH_CHECK(error == cudaSuccess, op, ": m=", m, ", n=", n, ", k=", k, ": ", message);
}

// Both kinds of rows in one launch, which reads the weights once: all exact rows, then the fast ones of `fast`, by a
// config that was measured.
void multiply_mixed(const char* op, const Tensor& like, const Rows& exact, const Rows& fast, const Layer& layer,
                    const MixedConfig& config, const Device& device) {
    const int64_t n = layer.n, k = layer.k;
    const MixedDesc desc{exact.m, fast.m, n, k};
    const int num_sms = device.traits().num_sms;
    MixedPlan plan;
    const char* message = "";
    STD_TORCH_CHECK(make_plan(desc, config, num_sms, &plan, &message), op, ": ", message);
    const bool is_quantized = fast.token_scale == nullptr;
    const int64_t sums_bytes = round_up(plan.mixed_workspace_bytes + plan.rest_workspace_bytes, 256);
    const int64_t codes_bytes = is_quantized ? round_up(fast.m * upper_pitch(k), 256) : 0;
    const Tensor scratch = empty(like, {sums_bytes + codes_bytes + fast.m * 4}, ScalarType::Byte);
    uint8_t* const codes = data<uint8_t>(scratch) + sums_bytes;
    auto* const scales = reinterpret_cast<float*>(codes + codes_bytes);
    if (is_quantized)
        check_error(op, run_quantize(fast.x, k, codes, scales, fast.m, k, device.traits().has_pdl(), device.stream()));
    GemmArgs args = args_of(layer, exact.out, device);
    args.x = exact.x;
    args.codes = is_quantized ? codes : static_cast<const uint8_t*>(fast.x);
    args.token_scale = is_quantized ? scales : fast.token_scale;
    args.workspace = sums_bytes > 0 ? data<float>(scratch) : nullptr;
    const int error = run_mixed(desc, config, args, num_sms, device.stream(), &message);
    STD_TORCH_CHECK(error == cudaSuccess, op, ": ", exact.m, " exact and ", fast.m, " fast rows, n=", n, ", k=", k,
                    ", mixed tile ", config.tile, ": ", message);
}

// x: [M, K] FP16, contiguous, of which the first `exact` rows run in FP16; with scales [M], a carrier. outliers: of x.
void multiply_by_class(const char* op, const Tensor& x, int64_t exact, const float* scales, const Layer& layer,
                       const OutlierList& outliers, bool quantize_activations, const Tensor& out,
                       const Device& device) {
    prepare_once(op, device);
    const GpuTraits& gpu = device.traits();
    const int64_t m = x.numel() / layer.k;
    const bool is_carrier_of_codes = scales != nullptr && gpu.has_fp8();
    const auto rows = [&](int64_t first, int64_t count, bool is_fp8) {
        return Rows{const_data<uint16_t>(x) + first * layer.k, is_fp8 && is_carrier_of_codes ? scales + first : nullptr,
                    data<uint16_t>(out) + first * layer.n, count};
    };
    const Rows first = rows(0, exact, false), rest = rows(exact, m - exact, true);
    const bool is_aligned = layer.k % 8 == 0 && reinterpret_cast<uintptr_t>(first.x) % 16 == 0;
    MixedConfig config{};
    if (exact > 0 && exact < m && quantize_activations && is_aligned && outliers.count == 0 && !gpu.is_portable() &&
        choose_mixed({exact, m - exact, layer.n, layer.k}, gpu.num_sms, &config)) {
        multiply_mixed(op, x, first, rest, layer, config, device);
        return;
    }
    const auto of = [&](const Rows& part) {
        OutlierList list = outliers;
        if (list.count > 0) list.x = static_cast<const uint16_t*>(part.x);
        return list;
    };
    if (exact > 0) multiply(op, x, first, layer, of(first), false, quantize_activations, device);
    if (exact < m) multiply(op, x, rest, layer, of(rest), true, quantize_activations, device);
}

Tensor linear(Tensor x, Tensor upper, Tensor lower, std::optional<Tensor> bias, std::optional<Tensor> outlier_rows,
              std::optional<Tensor> outlier_cols, std::optional<Tensor> outlier_deltas, int64_t n, int64_t k,
              bool quantize_activations, bool is_exact) {
    const char* const op = "nestedfp::linear";
    const Device device(op, "x", x);
    const Layer layer{upper, lower, bias, n, k};
    const int64_t m = k > 0 ? x.numel() / k : 0, exact = is_exact ? m : exact_rows(op, m);
    check_operands(op, "x", x, layer, device);
    check_outlier_lists(
        op, outlier_rows, outlier_cols, outlier_deltas,
        [&](const char*, const char* name, const Tensor& list) { check_device(op, name, list, device); });
    const Tensor out = empty_rows(x, n);
    if (x.numel() == 0) return out;
    const Tensor rows = x.is_contiguous() ? x : torch::stable::contiguous(x);
    OutlierList outliers{};
    if (outlier_rows.has_value()) {
        outliers = {static_cast<const uint16_t*>(rows.const_data_ptr()),
                    k,
                    const_data<int32_t>(*outlier_rows),
                    const_data<int32_t>(*outlier_cols),
                    const_data<float>(*outlier_deltas),
                    static_cast<int>(outlier_rows->numel())};
    }
    multiply_by_class(op, rows, exact, nullptr, layer, outliers, quantize_activations, out, device);
    return out;
}

Tensor linear_carried(Tensor carrier, Tensor scales, Tensor upper, Tensor lower, std::optional<Tensor> bias, int64_t n,
                      int64_t k) {
    const char* const op = "nestedfp::linear_carried";
    const Device device(op, "carrier", carrier);
    const Layer layer{upper, lower, bias, n, k};
    const int64_t exact = exact_rows(op, k > 0 ? carrier.numel() / k : 0);
    check_operands(op, "carrier", carrier, layer, device);
    check_carried_columns(op, k, kMaxQuantizedColumns);
    // A copy would be of FP16 values, and the bytes may be none.
    check_contiguous(op, "carrier as the operator before it made it", carrier);
    check_scales(op, scales, carrier);
    check_device(op, "scales", scales, device);
    const Tensor out = empty_rows(carrier, n);
    if (carrier.numel() == 0) return out;
    multiply_by_class(op, carrier, exact, const_data<float>(scales), layer, {}, true, out, device);
    return out;
}

}  // namespace
}  // namespace nestedfp::cuda

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CUDA, m) {
    m.impl("linear", TORCH_BOX(&nestedfp::cuda::linear));
    m.impl("linear_carried", TORCH_BOX(&nestedfp::cuda::linear_carried));
}

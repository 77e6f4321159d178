// The linear ops on CUDA tensors: checks, output and scratch memory, and which kernels run.
#include <optional>
#include <vector>

#include "cuda/host/device_gemm.h"
#include "cuda/host/ops_cuda.h"
#include "cuda/host/semaphores.h"
#include "cuda/host/tensors.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

// A layer's operands beside x.
struct Layer {
    const Tensor& upper;
    const std::optional<Tensor>& lower;
    const std::optional<Tensor>& bias;
    int64_t n, k;
};

// x: of FP16, or a carrier of codes.
void check_operands(const char* op, const char* name, const Tensor& x, const Layer& layer, bool is_lower_unread,
                    const Device& device) {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Half, op, ": expected ", name, " of dtype Half on a GPU, got ",
                    name_of(x.scalar_type()), "; run the model with dtype float16");
    STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == layer.k, op, ": expected ", name,
                    " of shape [..., k=", layer.k, "], got ", shape_of(x));
    check_packed_upper(op, layer.upper, layer.n, layer.k, device);
    check_lower_is_there(op, layer.lower, is_lower_unread);
    if (layer.lower.has_value()) check_packed_lower(op, *layer.lower, layer.n, layer.k, device);
    if (layer.bias.has_value()) {
        check_device(op, "bias", *layer.bias, device);
        check_dtype(op, "bias", *layer.bias, ScalarType::Half);
        check_vector(op, "bias", *layer.bias, layer.n);
        check_contiguous(op, "bias", *layer.bias);
    }
}

Tensor empty_out(const Tensor& x, int64_t n) {
    std::vector<int64_t> shape;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) shape.push_back(x.size(i));
    shape.push_back(n);
    return empty(x, shape, ScalarType::Half);
}

// out = x @ W.T + bias. rows: [M, K] FP16, contiguous; with token_scale, its bytes are codes [M, upper_pitch(K)].
void multiply(const char* op, const Tensor& rows, const float* token_scale, const Layer& layer,
              const OutlierList& outliers, bool is_fp8, bool quantize_activations, const Tensor& out,
              const Device& device) {
    const auto [upper, lower, bias, n, k] = layer;
    const int64_t m = rows.numel() / k;
    prepare_once(op, device);
    const GpuTraits& gpu = device.traits();
    // The activations of FP8 mode, where the tensor cores know E4M3; else FP16 ones multiply the FP8 weights.
    const bool is_fp8_gemm = is_fp8 && quantize_activations && gpu.has_fp8();
    const GemmDesc desc{is_fp8_gemm ? Precision::kFp8 : Precision::kFp16, m, n, k};
    GemmArgs args{};
    args.x = rows.const_data_ptr();
    args.x_pitch = k;
    args.upper = const_data<uint8_t>(upper);
    if (lower.has_value()) {
        args.lower = const_data<uint8_t>(*lower);
        args.neutral_lower = is_fp8;
    }
    args.bias = bias.has_value() ? bias->const_data_ptr() : nullptr;
    args.out = out.mutable_data_ptr();
    args.outliers = outliers;
    args.semaphores = stream_semaphores(device.stream());
    const DeviceGemm gemm(desc, is_fp8, gpu, args.semaphores != nullptr);

    // One allocation for all scratch memory: partial sums, then the activations as the GEMM reads them, then their
    // scales. torch's allocator keeps it in stream order.
    const bool is_quantized = is_fp8_gemm && token_scale == nullptr;
    // TMA and asynchronous copies read rows that begin at multiples of 16 bytes.
    const bool is_copied = !is_fp8_gemm && (k % 8 != 0 || reinterpret_cast<uintptr_t>(args.x) % 16 != 0);
    const int64_t pitch = is_fp8_gemm ? upper_pitch(k) : round_up(k, 8);
    const int64_t sums_bytes = round_up(gemm.workspace_bytes(), 256);
    const int64_t x_bytes = is_quantized ? round_up(m * pitch, 256) : is_copied ? m * pitch * 2 : 0;
    const int64_t scratch_bytes = sums_bytes + x_bytes + (is_quantized ? m * 4 : 0);
    std::optional<Tensor> scratch;
    if (scratch_bytes > 0) {
        scratch = empty(rows, {scratch_bytes}, ScalarType::Byte);
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
    if (token_scale != nullptr) {
        args.x_pitch = pitch;
        args.token_scale = token_scale;
    }
    const char* message = "";
    const int error = gemm.run(args, device.stream(), &message);
    STD_TORCH_CHECK(error == cudaSuccess, op, ": m=", m, ", n=", n, ", k=", k, ", ", gemm.describe(), ": ", message);
}

}  // namespace

Tensor linear(Tensor x, Tensor upper, std::optional<Tensor> lower, std::optional<Tensor> bias,
              std::optional<Tensor> outlier_rows, std::optional<Tensor> outlier_cols,
              std::optional<Tensor> outlier_deltas, int64_t n, int64_t k, bool quantize_activations) {
    const char* const op = "nestedfp::linear";
    const Device device(op, "x", x);
    const bool is_fp8 = mode_in_force() == Precision::kFp8;
    const Layer layer{upper, lower, bias, n, k};
    check_operands(op, "x", x, layer, is_fp8 && (quantize_activations || device.traits().is_portable()), device);
    check_outlier_lists(
        op, outlier_rows, outlier_cols, outlier_deltas,
        [&](const char*, const char* name, const Tensor& list) { check_device(op, name, list, device); });
    const Tensor out = empty_out(x, n);
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
    multiply(op, rows, nullptr, layer, outliers, is_fp8, quantize_activations, out, device);
    return out;
}

Tensor linear_carried(Tensor carrier, Tensor scales, Tensor upper, std::optional<Tensor> lower,
                      std::optional<Tensor> bias, int64_t n, int64_t k) {
    const char* const op = "nestedfp::linear_carried";
    const Device device(op, "carrier", carrier);
    const Precision mode = mode_in_force();
    const bool is_fp8 = mode == Precision::kFp8;
    const Layer layer{upper, lower, bias, n, k};
    check_operands(op, "carrier", carrier, layer, is_fp8, device);
    check_carried_columns(op, k, kMaxQuantizedColumns);
    // A copy would be of FP16 values, and the bytes may be none.
    check_contiguous(op, "carrier as the operator before it made it", carrier);
    check_scales(op, scales, carrier);
    check_device(op, "scales", scales, device);
    const Tensor out = empty_out(carrier, n);
    if (carrier.numel() == 0) return out;
    multiply(op, carrier, carried_precision(mode, device) == Precision::kFp8 ? const_data<float>(scales) : nullptr,
             layer, {}, is_fp8, true, out, device);
    return out;
}

}  // namespace nestedfp::cuda

// The ops before a linear layer on CUDA tensors, which write what it reads in the mode in force: FP16, or codes and
// scales.
#include <tuple>

#include "cuda/host/tensors.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

void check_input(const char* op, const char* name, const Tensor& tensor, const Device& device) {
    check_device(op, name, tensor, device);
    check_dtype(op, name, tensor, ScalarType::Half);
}

// Contiguous, as the kernels read it.
Tensor as_rows(const char* op, const char* name, const Tensor& tensor) {
    const Tensor rows = tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0, op, ": expected ", name,
                    " at an address that is a multiple of 16 bytes; call .clone() on it");
    return rows;
}

Tensor empty_scales(const Tensor& like) { return empty(like, tokens_of(like), ScalarType::Float); }

// How many rows, the first ones, a carrier holds as FP16; the others as codes.
int64_t halves_of(const char* op, int64_t m, const Device& device) {
    return device.traits().has_fp8() ? exact_rows(op, m) : m;
}

// residual, sum: null without one.
std::tuple<Tensor, Tensor> norm(const char* op, const Tensor& x, const Tensor* residual, const Tensor* sum,
                                const Tensor& weight, double epsilon, const Device& device) {
    const int64_t k = x.size(x.dim() - 1);
    check_carried_columns(op, k, kMaxNormColumns);
    check_input(op, "x", x, device);
    check_input(op, "weight", weight, device);
    check_vector(op, "weight", weight, k);
    const Tensor carrier = empty_rows(x, k), scales = empty_scales(x);
    if (x.numel() == 0) return {carrier, scales};
    const Tensor rows = as_rows(op, "x", x), weights = as_rows(op, "weight", weight);
    const Tensor residual_rows = residual == nullptr ? rows : as_rows(op, "residual", *residual);
    RowNormArgs args{};
    args.x = rows.const_data_ptr();
    args.weight = weights.const_data_ptr();
    if (residual != nullptr) {
        args.residual = residual_rows.const_data_ptr();
        args.sum = sum->mutable_data_ptr();
    }
    args.carrier = carrier.mutable_data_ptr();
    args.scales = data<float>(scales);
    args.epsilon = static_cast<float>(epsilon);
    const int64_t m = x.numel() / k;
    check_error(op, run_rms_norm(args, m, k, halves_of(op, m, device), device.traits().has_pdl(), device.stream()));
    return {carrier, scales};
}

std::tuple<Tensor, Tensor> rms_norm(Tensor x, Tensor weight, double epsilon) {
    const char* const op = "nestedfp::rms_norm";
    const Device device(op, "x", x);
    check_rows(op, "x", x);
    return norm(op, x, nullptr, nullptr, weight, epsilon, device);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(Tensor x, Tensor residual, Tensor weight, double epsilon) {
    const char* const op = "nestedfp::add_rms_norm";
    const Device device(op, "x", x);
    check_rows(op, "x", x);
    check_same_shape(op, "residual", residual, x);
    check_input(op, "residual", residual, device);
    const Tensor sum = empty_rows(x, x.size(x.dim() - 1));
    const auto [carrier, scales] = norm(op, x, &residual, &sum, weight, epsilon, device);
    return {carrier, scales, sum};
}

std::tuple<Tensor, Tensor> silu_and_mul(Tensor x) {
    const char* const op = "nestedfp::silu_and_mul";
    const Device device(op, "x", x);
    check_rows(op, "x", x);
    check_input(op, "x", x, device);
    const int64_t k = x.size(x.dim() - 1) / 2;
    STD_TORCH_CHECK(x.size(x.dim() - 1) == 2 * k, op,
                    ": expected x of shape [..., gate and up], an even number of columns, got ", shape_of(x));
    check_carried_columns(op, k, kMaxQuantizedColumns);
    const Tensor carrier = empty_rows(x, k), scales = empty_scales(x);
    if (x.numel() == 0) return {carrier, scales};
    const Tensor rows = as_rows(op, "x", x);
    const int64_t m = x.numel() / (2 * k);
    check_error(op, run_silu_and_mul(rows.const_data_ptr(), carrier.mutable_data_ptr(), data<float>(scales), m, k,
                                     halves_of(op, m, device), device.traits().has_pdl(), device.stream()));
    return {carrier, scales};
}

// The activations of a library's GEMM, in FP8 mode.
std::tuple<Tensor, Tensor> quantize_rows(Tensor x) {
    const char* const op = "nestedfp::quantize_rows";
    const Device device(op, "x", x);
    check_has_kernels(op, device);
    check_dtype(op, "x", x, ScalarType::Half);
    check_matrix(op, "x", x);
    const int64_t m = x.size(0), k = x.size(1);
    STD_TORCH_CHECK(k >= 1 && k <= kMaxQuantizedColumns, op, ": expected 1 to ", kMaxQuantizedColumns, " columns, got ",
                    k);
    const Tensor rows = x.is_contiguous() ? x : torch::stable::contiguous(x);
    const Tensor codes = empty(x, {m, upper_pitch(k)}, ScalarType::Byte);
    const Tensor scales = empty(x, {m, 1}, ScalarType::Float);
    if (m > 0) {
        check_error(op, run_quantize(rows.const_data_ptr(), k, data<uint8_t>(codes), data<float>(scales), m, k,
                                     device.traits().has_pdl(), device.stream()));
    }
    return {codes, scales};
}

}  // namespace
}  // namespace nestedfp::cuda

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CUDA, m) {
    m.impl("rms_norm", TORCH_BOX(&nestedfp::cuda::rms_norm));
    m.impl("add_rms_norm", TORCH_BOX(&nestedfp::cuda::add_rms_norm));
    m.impl("quantize_rows", TORCH_BOX(&nestedfp::cuda::quantize_rows));
    m.impl("silu_and_mul", TORCH_BOX(&nestedfp::cuda::silu_and_mul));
}

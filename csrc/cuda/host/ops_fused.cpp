// The ops before a linear layer on CUDA tensors, which write what it reads in the mode in force: FP16, or codes and
// scales.
#include <tuple>
#include <vector>

#include "cuda/host/ops_cuda.h"
#include "cuda/host/tensors.h"
#include "cuda/kernels/kernels.h"

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

// The shape of a tensor without its last axis.
std::vector<int64_t> tokens_of(const Tensor& tensor) {
    std::vector<int64_t> shape;
    for (int64_t i = 0; i + 1 < tensor.dim(); ++i) shape.push_back(tensor.size(i));
    return shape;
}

Tensor empty_rows(const Tensor& like, int64_t k) {
    std::vector<int64_t> shape = tokens_of(like);
    shape.push_back(k);
    return empty(like, shape, ScalarType::Half);
}

Tensor empty_scales(const Tensor& like) { return empty(like, tokens_of(like), ScalarType::Float); }

// Calls launch(first row, rows, what the carrier holds of them) for the exact rows and for the others.
template <class Launch>
void launch_by_class(const char* op, int64_t m, const Device& device, Launch&& launch) {
    const int64_t exact = exact_rows(op, m);
    if (exact > 0) check_error(op, launch(0, exact, Precision::kFp16));
    if (exact < m) check_error(op, launch(exact, m - exact, carried_fast(device)));
}

// Row `row` of k FP16 values.
const void* row_of(const Tensor& rows, int64_t row, int64_t k) { return const_data<uint16_t>(rows) + row * k; }
void* row_to(const Tensor& rows, int64_t row, int64_t k) { return data<uint16_t>(rows) + row * k; }

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
    launch_by_class(op, x.numel() / k, device, [&](int64_t first, int64_t count, Precision to) {
        RowNormArgs args{};
        args.x = row_of(rows, first, k);
        args.weight = weights.const_data_ptr();
        if (residual != nullptr) {
            args.residual = row_of(residual_rows, first, k);
            args.sum = row_to(*sum, first, k);
        }
        args.carrier = row_to(carrier, first, k);
        args.scales = data<float>(scales) + first;
        args.epsilon = static_cast<float>(epsilon);
        return run_rms_norm(args, count, k, to, device.traits().has_pdl(), device.stream());
    });
    return {carrier, scales};
}

}  // namespace

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
    launch_by_class(op, x.numel() / (2 * k), device, [&](int64_t first, int64_t count, Precision to) {
        return run_silu_and_mul(row_of(rows, first, 2 * k), row_to(carrier, first, k), data<float>(scales) + first,
                                count, k, to, device.traits().has_pdl(), device.stream());
    });
    return {carrier, scales};
}

}  // namespace nestedfp::cuda

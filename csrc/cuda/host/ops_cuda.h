// The ops that layers run, on CUDA tensors; schemas in csrc/bindings.cpp, meaning in nestedfp/kernels/ops.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace nestedfp::cuda {

// ops_linear.cpp
torch::stable::Tensor linear(torch::stable::Tensor x, torch::stable::Tensor upper, torch::stable::Tensor lower,
                             std::optional<torch::stable::Tensor> bias,
                             std::optional<torch::stable::Tensor> outlier_rows,
                             std::optional<torch::stable::Tensor> outlier_cols,
                             std::optional<torch::stable::Tensor> outlier_deltas, int64_t n, int64_t k,
                             bool quantize_activations);
torch::stable::Tensor linear_carried(torch::stable::Tensor carrier, torch::stable::Tensor scales,
                                     torch::stable::Tensor upper, torch::stable::Tensor lower,
                                     std::optional<torch::stable::Tensor> bias, int64_t n, int64_t k);

// ops_fused.cpp
std::tuple<torch::stable::Tensor, torch::stable::Tensor> rms_norm(torch::stable::Tensor x, torch::stable::Tensor weight,
                                                                  double epsilon);
std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> add_rms_norm(
    torch::stable::Tensor x, torch::stable::Tensor residual, torch::stable::Tensor weight, double epsilon);
std::tuple<torch::stable::Tensor, torch::stable::Tensor> silu_and_mul(torch::stable::Tensor x);

}  // namespace nestedfp::cuda

// The CPU ops on tensors; schemas in bindings.cpp, meaning in nestedfp/kernels/ops.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "cpu/kernels/kernels.h"

namespace nestedfp {

std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> split_cpu(torch::stable::Tensor weight);

std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor> list_outliers_cpu(
    torch::stable::Tensor weight, int64_t count);

torch::stable::Tensor join_cpu(torch::stable::Tensor upper, torch::stable::Tensor lower);

torch::stable::Tensor histogram_cpu(torch::stable::Tensor weight);

std::tuple<torch::stable::Tensor, torch::stable::Tensor> pack_cpu(torch::stable::Tensor upper,
                                                                  torch::stable::Tensor lower);

std::tuple<torch::stable::Tensor, torch::stable::Tensor> unpack_cpu(torch::stable::Tensor upper,
                                                                    torch::stable::Tensor lower, int64_t n, int64_t k);

torch::stable::Tensor linear_cpu(torch::stable::Tensor x, torch::stable::Tensor upper, torch::stable::Tensor lower,
                                 std::optional<torch::stable::Tensor> bias,
                                 std::optional<torch::stable::Tensor> outlier_rows,
                                 std::optional<torch::stable::Tensor> outlier_cols,
                                 std::optional<torch::stable::Tensor> outlier_deltas, int64_t n, int64_t k,
                                 bool quantize_activations);

torch::stable::Tensor linear_exact_cpu(torch::stable::Tensor x, torch::stable::Tensor upper,
                                       torch::stable::Tensor lower, std::optional<torch::stable::Tensor> bias,
                                       std::optional<torch::stable::Tensor> outlier_rows,
                                       std::optional<torch::stable::Tensor> outlier_cols,
                                       std::optional<torch::stable::Tensor> outlier_deltas, int64_t n, int64_t k);

// A CPU's carrier holds FP16 activations in both modes: they are quantised here.
torch::stable::Tensor linear_carried_cpu(torch::stable::Tensor carrier, torch::stable::Tensor scales,
                                         torch::stable::Tensor upper, torch::stable::Tensor lower,
                                         std::optional<torch::stable::Tensor> bias, int64_t n, int64_t k);

}  // namespace nestedfp

// Argument checks of the ops. Every message says which op, what was expected and what came.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <sstream>
#include <string>

#include "activations.h"

namespace nestedfp {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline std::string shape_of(const Tensor& tensor) {
    std::ostringstream text;
    text << '[';
    for (int64_t i = 0; i < tensor.dim(); ++i) text << (i > 0 ? ", " : "") << tensor.size(i);
    text << ']';
    return text.str();
}

inline const char* name_of(ScalarType type) { return torch::headeronly::toString(type); }

inline void check_cpu(const char* op, const char* name, const Tensor& tensor) {
    STD_TORCH_CHECK(tensor.is_cpu(), op, ": expected ", name,
                    " on the CPU, got a tensor on another device; move it with .cpu()");
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType expected) {
    STD_TORCH_CHECK(tensor.scalar_type() == expected, op, ": expected ", name, " of dtype ", name_of(expected),
                    ", got ", name_of(tensor.scalar_type()), "; convert it with .to()");
}

inline void check_shape(const char* op, const char* name, const Tensor& tensor, int64_t rows, int64_t cols) {
    STD_TORCH_CHECK(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == cols, op, ": expected ", name,
                    " of shape [", rows, ", ", cols, "], got ", shape_of(tensor));
}

inline void check_vector(const char* op, const char* name, const Tensor& tensor, int64_t length) {
    STD_TORCH_CHECK(tensor.dim() == 1 && tensor.size(0) == length, op, ": expected ", name, " of shape [", length,
                    "], got ", shape_of(tensor));
}

inline void check_contiguous(const char* op, const char* name, const Tensor& tensor) {
    STD_TORCH_CHECK(tensor.is_contiguous(), op, ": expected a contiguous ", name, "; call .contiguous() on it");
}

inline void check_matrix(const char* op, const char* name, const Tensor& tensor) {
    STD_TORCH_CHECK(tensor.dim() == 2 && tensor.size(0) >= 1 && tensor.size(1) >= 1, op, ": expected ", name,
                    " of shape [N, K] with N, K >= 1, got ", shape_of(tensor));
}

// The lists of the weights beyond the planes' range: all three or none, of one length. check_place(op, name, tensor)
// says whether a list is where the op runs.
template <typename CheckPlace>
void check_outlier_lists(const char* op, const std::optional<Tensor>& rows, const std::optional<Tensor>& cols,
                         const std::optional<Tensor>& deltas, CheckPlace&& check_place) {
    STD_TORCH_CHECK(rows.has_value() == cols.has_value() && rows.has_value() == deltas.has_value(), op,
                    ": expected outlier_rows, outlier_cols and outlier_deltas all given or all None");
    if (!rows.has_value()) return;
    const auto check = [&](const char* name, const Tensor& list, ScalarType type) {
        check_vector(op, name, list, rows->numel());
        check_dtype(op, name, list, type);
        check_place(op, name, list);
        check_contiguous(op, name, list);
    };
    check("outlier_rows", *rows, ScalarType::Int);
    check("outlier_cols", *cols, ScalarType::Int);
    check("outlier_deltas", *deltas, ScalarType::Float);
}

inline void check_rows(const char* op, const char* name, const Tensor& tensor) {
    STD_TORCH_CHECK(tensor.dim() >= 1 && tensor.size(tensor.dim() - 1) >= 1, op, ": expected ", name,
                    " of shape [..., K] with K >= 1, got ", shape_of(tensor));
}

inline void check_same_shape(const char* op, const char* name, const Tensor& tensor, const Tensor& other) {
    STD_TORCH_CHECK(shape_of(tensor) == shape_of(other), op, ": expected ", name, " of shape ", shape_of(other),
                    ", got ", shape_of(tensor));
}

// Columns that a carrier may have.
inline void check_carried_columns(const char* op, int64_t k, int64_t most) {
    STD_TORCH_CHECK(k >= 1 && k % kCarrierColumns == 0 && k <= most, op, ": expected rows of a multiple of ",
                    kCarrierColumns, " columns, at most ", most, ", got ", k,
                    "; use the plain operators and nestedfp::linear for others");
}

inline void check_scales(const char* op, const Tensor& scales, const Tensor& carrier) {
    check_dtype(op, "scales", scales, ScalarType::Float);
    bool is_right = scales.dim() + 1 == carrier.dim();
    for (int64_t i = 0; is_right && i < scales.dim(); ++i) is_right = scales.size(i) == carrier.size(i);
    STD_TORCH_CHECK(is_right, op, ": expected scales with one value for each row of the carrier ", shape_of(carrier),
                    ", got ", shape_of(scales));
    check_contiguous(op, "scales", scales);
}

}  // namespace nestedfp

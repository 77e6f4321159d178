// Weights joined again, for a library's GEMM (nestedfp/vllm_plugin/weights/library_route.py) and the check of what was
// loaded.
#include <tuple>

#include "cuda/host/tensors.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

Tensor join_rows(Tensor upper, Tensor lower, int64_t n, int64_t k, int64_t first_row, int64_t rows) {
    const char* const op = "nestedfp::join_rows";
    const Device device(op, "upper", upper);
    check_packed_upper(op, upper, n, k, device);
    check_packed_lower(op, lower, n, k, device);
    STD_TORCH_CHECK(first_row >= 0 && first_row % kBlockRows == 0 && rows >= 1 && first_row + rows <= n, op,
                    ": expected rows of 0 to n=", n, " from a multiple of ", kBlockRows, " on, got ", rows, " from ",
                    first_row, " on");
    const Tensor out = empty(upper, {rows, k}, ScalarType::Half);
    check_error(op, run_join(const_data<uint8_t>(upper), const_data<uint8_t>(lower), data<uint16_t>(out), n, k,
                             first_row, rows, device.stream()));
    return out;
}

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
    m.impl("join_rows", TORCH_BOX(&nestedfp::cuda::join_rows));
    m.impl("quantize_rows", TORCH_BOX(&nestedfp::cuda::quantize_rows));
}

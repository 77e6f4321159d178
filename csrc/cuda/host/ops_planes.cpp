// The ops that make and rearrange planes, on CUDA tensors.
#include <tuple>

#include "cuda/host/launch.h"
#include "cuda/host/tensors.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {
namespace {

std::tuple<Tensor, Tensor, Tensor> split(Tensor weight) {
    const char* const op = "nestedfp::split";
    const Device device(op, "weight", weight);
    check_dtype(op, "weight", weight, ScalarType::Half);
    check_matrix(op, "weight", weight);
    check_contiguous(op, "weight", weight);
    const Tensor upper = empty(weight, {weight.size(0), weight.size(1)}, ScalarType::Byte);
    const Tensor lower = empty(weight, {weight.size(0), weight.size(1)}, ScalarType::Byte);
    const int64_t counts_shape[] = {2};
    const Tensor counts = torch::stable::new_zeros(weight, {counts_shape, 1}, ScalarType::Long);
    check_error(op, run_split(const_data<uint16_t>(weight), data<uint8_t>(upper), data<uint8_t>(lower), weight.numel(),
                              data<unsigned long long>(counts), device.stream()));
    return {upper, lower, counts};
}

std::tuple<Tensor, Tensor> pack(Tensor upper, Tensor lower) {
    const char* const op = "nestedfp::pack";
    const Device device(op, "upper", upper);
    check_has_kernels(op, device);
    check_matrix(op, "upper", upper);
    const int64_t n = upper.size(0), k = upper.size(1);
    check_shape(op, "lower", lower, n, k);
    check_plane(op, "upper", upper, device);
    check_plane(op, "lower", lower, device);
    STD_TORCH_CHECK(k <= kMaxQuantizedColumns, op, ": expected at most ", kMaxQuantizedColumns,
                    " input features, which the activation quantiser can hold, got ", k, "; keep this layer plain");
    const Tensor packed_upper = empty(upper, {n, upper_pitch(k)}, ScalarType::Byte);
    const Tensor packed_lower = empty(upper, {lower_bytes(n, k)}, ScalarType::Byte);
    check_error(op, prepare_gemm(device.traits()));
    check_error(op, run_pack(const_data<uint8_t>(upper), const_data<uint8_t>(lower), data<uint8_t>(packed_upper),
                             data<uint8_t>(packed_lower), n, k, device.stream()));
    return {packed_upper, packed_lower};
}

// Weights joined again, for a library's GEMM (nestedfp/vllm_plugin/weights/library_route.py) and the check of what was
// loaded.
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

}  // namespace
}  // namespace nestedfp::cuda

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CUDA, m) {
    m.impl("split", TORCH_BOX(&nestedfp::cuda::split));
    m.impl("pack", TORCH_BOX(&nestedfp::cuda::pack));
    m.impl("join_rows", TORCH_BOX(&nestedfp::cuda::join_rows));
}

// The products of experts on CUDA tensors: checks, and the kernel.
#include <optional>

#include "cuda/host/launch.h"
#include "cuda/host/tensors.h"

namespace nestedfp::cuda {
namespace {

void experts_product(Tensor out, Tensor x, Tensor upper, Tensor lower, std::optional<Tensor> scales, Tensor row_ids,
                     Tensor tile_experts, Tensor padded_rows, int64_t valid, int64_t tile_rows, bool is_gated) {
    const char* const op = "nestedfp::experts_product";
    const Device device(op, "x", x);
    STD_TORCH_CHECK(!device.traits().is_portable(), op, ": expected a GPU of compute capability 9.0");
    check_plane(op, "upper", upper, device);
    STD_TORCH_CHECK(upper.dim() == 3 && upper.size(1) % 8 == 0 && upper.size(2) % 64 == 0, op,
                    ": expected upper of shape [experts, a multiple of 8, a multiple of 64], got ", shape_of(upper));
    const int64_t experts = upper.size(0), n = upper.size(1), k = upper.size(2), rows = row_ids.numel();
    STD_TORCH_CHECK(!is_gated || n % 128 == 0, op, ": expected 64 or a multiple of it gates, got planes of shape ",
                    shape_of(upper));
    STD_TORCH_CHECK(experts * n > 0 && experts * n < (int64_t{1} << 31), op,
                    ": expected at least one row of all experts and less than 2^31, got ", shape_of(upper));
    check_plane(op, "lower", lower, device);
    check_same_shape(op, "lower", lower, upper);
    const auto check_list = [&](const char* name, const Tensor& list, ScalarType type) {
        check_device(op, name, list, device);
        check_dtype(op, name, list, type);
        check_contiguous(op, name, list);
    };
    check_list("x", x, ScalarType::Half);
    check_list("out", out, ScalarType::Half);
    check_list("row_ids", row_ids, ScalarType::Int);
    check_list("tile_experts", tile_experts, ScalarType::Int);
    check_list("padded_rows", padded_rows, ScalarType::Int);
    check_vector(op, "padded_rows", padded_rows, 1);
    check_shape(op, "x", x, rows, k);
    check_shape(op, "out", out, is_gated ? rows : valid, is_gated ? n / 2 : n);
    STD_TORCH_CHECK(tile_experts.numel() * tile_rows >= rows, op, ": expected the expert of every ", tile_rows, " of ",
                    rows, " rows, got ", tile_experts.numel());
    if (scales.has_value()) {
        check_list("scales", *scales, ScalarType::Float);
        check_vector(op, "scales", *scales, rows);
    }
    if (rows == 0 || valid == 0) return;
    prepare_once(op, device);
    const ExpertsDesc desc{experts, n, k, rows, valid, tile_experts.numel(), tile_rows, is_gated};
    int* const semaphores = stream_semaphores(device.stream());
    STD_TORCH_CHECK(semaphores != nullptr, op, ": expected 64 CUDA streams at most that multiply");
    const ExpertsArgs args{x.const_data_ptr(),
                           scales.has_value() ? const_data<float>(*scales) : nullptr,
                           const_data<uint8_t>(upper),
                           const_data<uint8_t>(lower),
                           out.mutable_data_ptr(),
                           const_data<int>(row_ids),
                           const_data<int>(tile_experts),
                           const_data<int>(padded_rows),
                           semaphores};
    const char* message = "";
    const int error = run_experts(desc, args, device.traits().num_sms, device.stream(), &message);
    STD_TORCH_CHECK(error == cudaSuccess, op, ": tiles of ", tile_rows, " rows: ", message);
}

}  // namespace
}  // namespace nestedfp::cuda

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CUDA, m) { m.impl("experts_product", TORCH_BOX(&nestedfp::cuda::experts_product)); }

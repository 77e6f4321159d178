// The ops on CUDA tensors, for the schemas of csrc/bindings.cpp: checks, output and scratch memory, the stream, and
// which kernels run. A library of its own, nestedfp_cuda_C, loaded after nestedfp_C by nestedfp/kernels/cuda_ops.py.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <atomic>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "checks.h"
#include "cuda/host/device_gemm.h"
#include "cuda/host/semaphores.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"
#include "mode.h"

namespace nestedfp::cuda {
namespace {

// Makes the tensor's device current and finds torch's stream on it.
class Device {
  public:
    Device(const char* op, const char* name, const Tensor& tensor) : guard_(index_of(op, name, tensor)) {
        index_ = tensor.get_device_index();
        void* stream = nullptr;
        STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream) == 0, op,
                        ": torch has no current CUDA stream on device ", index_);
        stream_ = static_cast<cudaStream_t>(stream);
        traits_ = &gpu_traits(index_);
    }

    cudaStream_t stream() const { return stream_; }
    const GpuTraits& traits() const { return *traits_; }
    int index() const { return index_; }

  private:
    static int index_of(const char* op, const char* name, const Tensor& tensor) {
        STD_TORCH_CHECK(tensor.is_cuda(), op, ": expected ", name, " on a CUDA device; move it with .cuda()");
        return tensor.get_device_index();
    }

    torch::stable::accelerator::DeviceGuard guard_;
    int index_ = 0;
    cudaStream_t stream_ = nullptr;
    const GpuTraits* traits_ = nullptr;
};

void check_device(const char* op, const char* name, const Tensor& tensor, const Device& device) {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device.index(), op, ": expected ", name,
                    " on the device of the other arguments (cuda:", device.index(), ")");
}

void check_error(const char* op, int error) {
    STD_TORCH_CHECK(error == cudaSuccess, op, ": ", cudaGetErrorString(static_cast<cudaError_t>(error)));
}

void check_has_kernels(const char* op, const Device& device) {
    const int capability = device.traits().capability;
    STD_TORCH_CHECK(device.traits().has_kernels(), op, ": expected a GPU of compute capability 8.0 or newer, got ",
                    capability / 10, ".", capability % 10, " on cuda:", device.index());
}

// The mode lives in nestedfp_C; the dispatcher is the one door between the two libraries. It is asked once, where.
Precision mode_in_force() {
    static const std::atomic<int64_t>* const mode = [] {
        StableIValue stack[1] = {};
        STD_TORCH_CHECK(torch_call_dispatcher("nestedfp::mode_address", "", stack, TORCH_ABI_VERSION) == 0,
                        "nestedfp::linear: nestedfp::mode_address failed; import nestedfp.kernels.ops first");
        return reinterpret_cast<const std::atomic<int64_t>*>(torch::stable::detail::to<int64_t>(stack[0]));
    }();
    return static_cast<Precision>(mode->load(std::memory_order_relaxed));
}

// Kernels are loaded onto a device by pack; a plane may also have been packed on another one.
void prepare_once(const char* op, const Device& device) {
    thread_local std::set<int> prepared;
    if (prepared.count(device.index()) > 0) return;
    check_error(op, prepare_gemm(device.traits()));
    prepared.insert(device.index());
}

Tensor empty(const Tensor& like, std::vector<int64_t> shape, ScalarType type) {
    return torch::stable::new_empty(like, {shape.data(), shape.size()}, type);
}

template <class T>
T* data(const Tensor& tensor) {
    return static_cast<T*>(tensor.mutable_data_ptr());
}

template <class T>
const T* const_data(const Tensor& tensor) {
    return static_cast<const T*>(tensor.const_data_ptr());
}

void check_plane(const char* op, const char* name, const Tensor& plane, const Device& device) {
    check_device(op, name, plane, device);
    check_dtype(op, name, plane, ScalarType::Byte);
    check_contiguous(op, name, plane);
}

void check_packed_upper(const char* op, const Tensor& upper, int64_t n, int64_t k, const Device& device) {
    STD_TORCH_CHECK(n >= 1 && k >= 1 && n < (int64_t{1} << 31) && k < (int64_t{1} << 31), op,
                    ": expected n and k from 1 to 2^31 - 1, got ", n, " and ", k);
    check_plane(op, "upper", upper, device);
    check_shape(op, "upper", upper, n, upper_pitch(k));
}

void check_packed_lower(const char* op, const Tensor& lower, int64_t n, int64_t k, const Device& device) {
    check_plane(op, "lower", lower, device);
    check_vector(op, "lower", lower, lower_bytes(n, k));
}

}  // namespace

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

std::tuple<Tensor, Tensor, Tensor> list_outliers(Tensor weight, int64_t count) {
    const char* const op = "nestedfp::list_outliers";
    const Device device(op, "weight", weight);
    check_dtype(op, "weight", weight, ScalarType::Half);
    check_matrix(op, "weight", weight);
    check_contiguous(op, "weight", weight);
    STD_TORCH_CHECK(count >= 0 && count <= weight.numel(), op, ": expected count from 0 to ", weight.numel(), ", got ",
                    count);
    const Tensor rows = empty(weight, {count}, ScalarType::Int);
    const Tensor cols = empty(weight, {count}, ScalarType::Int);
    const Tensor deltas = empty(weight, {count}, ScalarType::Float);
    const Tensor scratch = empty(weight, {weight.size(0)}, ScalarType::Int);
    if (count > 0) {
        check_error(op, run_list_outliers(const_data<uint16_t>(weight), weight.size(0), weight.size(1), count,
                                          data<int32_t>(scratch), data<int32_t>(rows), data<int32_t>(cols),
                                          data<float>(deltas), device.stream()));
    }
    return {rows, cols, deltas};
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

std::tuple<Tensor, Tensor> unpack(Tensor upper, Tensor lower, int64_t n, int64_t k) {
    const char* const op = "nestedfp::unpack";
    const Device device(op, "upper", upper);
    check_packed_upper(op, upper, n, k, device);
    check_packed_lower(op, lower, n, k, device);
    const Tensor plain_upper = empty(upper, {n, k}, ScalarType::Byte);
    const Tensor plain_lower = empty(upper, {n, k}, ScalarType::Byte);
    check_error(op, run_unpack(const_data<uint8_t>(upper), const_data<uint8_t>(lower), data<uint8_t>(plain_upper),
                               data<uint8_t>(plain_lower), n, k, device.stream()));
    return {plain_upper, plain_lower};
}

Tensor linear(Tensor x, Tensor upper, std::optional<Tensor> lower, std::optional<Tensor> bias,
              std::optional<Tensor> outlier_rows, std::optional<Tensor> outlier_cols,
              std::optional<Tensor> outlier_deltas, int64_t n, int64_t k, bool quantize_activations) {
    const char* const op = "nestedfp::linear";
    const Device device(op, "x", x);
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Half, op, ": expected x of dtype Half on a GPU, got ",
                    name_of(x.scalar_type()), "; run the model with dtype float16");
    STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == k, op, ": expected x of shape [..., k=", k, "], got ",
                    shape_of(x));
    check_packed_upper(op, upper, n, k, device);
    const GpuTraits& gpu = device.traits();
    const bool is_fp8 = mode_in_force() == Precision::kFp8;
    // The activations of FP8 mode, where the tensor cores know E4M3; else FP16 ones multiply the FP8 weights.
    const bool is_quantized = is_fp8 && quantize_activations && gpu.has_fp8();
    check_lower_is_there(op, lower, gpu.is_portable() ? is_fp8 : is_quantized);
    if (lower.has_value()) check_packed_lower(op, *lower, n, k, device);
    if (bias.has_value()) {
        check_device(op, "bias", *bias, device);
        check_dtype(op, "bias", *bias, ScalarType::Half);
        check_vector(op, "bias", *bias, n);
        check_contiguous(op, "bias", *bias);
    }
    check_outlier_lists(
        op, outlier_rows, outlier_cols, outlier_deltas,
        [&](const char*, const char* name, const Tensor& list) { check_device(op, name, list, device); });

    std::vector<int64_t> out_shape;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) out_shape.push_back(x.size(i));
    out_shape.push_back(n);
    const Tensor out = empty(x, out_shape, ScalarType::Half);
    const int64_t m = x.numel() / k;
    if (m == 0) return out;

    prepare_once(op, device);
    const Tensor rows = x.is_contiguous() ? x : torch::stable::contiguous(x);
    const GemmDesc desc{is_quantized ? Precision::kFp8 : Precision::kFp16, m, n, k};
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
    args.semaphores = stream_semaphores(device.stream());
    const DeviceGemm gemm(desc, is_fp8, gpu, args.semaphores != nullptr);

    // One allocation for all scratch memory: partial sums, then the activations as the GEMM reads them, then their
    // scales. torch's allocator keeps it in stream order.
    // TMA and asynchronous copies read rows that begin at multiples of 16 bytes.
    const bool is_copied = !is_quantized && (k % 8 != 0 || reinterpret_cast<uintptr_t>(args.x) % 16 != 0);
    const int64_t pitch = is_quantized ? upper_pitch(k) : round_up(k, 8);
    const int64_t sums_bytes = round_up(gemm.workspace_bytes(), 256);
    const int64_t x_bytes = is_quantized ? round_up(m * pitch, 256) : is_copied ? m * pitch * 2 : 0;
    const int64_t scratch_bytes = sums_bytes + x_bytes + (is_quantized ? m * 4 : 0);
    std::optional<Tensor> scratch;
    if (scratch_bytes > 0) {
        scratch = empty(x, {scratch_bytes}, ScalarType::Byte);
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
    const char* message = "";
    const int error = gemm.run(args, device.stream(), &message);
    STD_TORCH_CHECK(error == cudaSuccess, op, ": m=", m, ", n=", n, ", k=", k, ", ", gemm.describe(), ": ", message);

    if (outlier_rows.has_value()) {
        check_error(op, run_outliers(rows.const_data_ptr(), k, const_data<int32_t>(*outlier_rows),
                                     const_data<int32_t>(*outlier_cols), const_data<float>(*outlier_deltas),
                                     outlier_rows->numel(), out.mutable_data_ptr(), m, n, device.stream()));
    }
    return out;
}

}  // namespace nestedfp::cuda

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CUDA, m) {
    m.impl("split", TORCH_BOX(&nestedfp::cuda::split));
    m.impl("list_outliers", TORCH_BOX(&nestedfp::cuda::list_outliers));
    m.impl("pack", TORCH_BOX(&nestedfp::cuda::pack));
    m.impl("unpack", TORCH_BOX(&nestedfp::cuda::unpack));
    m.impl("linear", TORCH_BOX(&nestedfp::cuda::linear));
}

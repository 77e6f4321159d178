// What the ops on CUDA tensors share: the device and its stream, checks, memory, and the mode.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <optional>
#include <set>
#include <vector>

#include "checks.h"
#include "cuda/host/gpu_traits.h"
#include "cuda/kernels/layout.h"
#include "mode.h"

namespace nestedfp::cuda {

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

inline void check_device(const char* op, const char* name, const Tensor& tensor, const Device& device) {
    STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == device.index(), op, ": expected ", name,
                    " on the device of the other arguments (cuda:", device.index(), ")");
}

inline void check_error(const char* op, int error) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // or the next launch would be blamed for it
    STD_TORCH_CHECK(false, op, ": ", cudaGetErrorString(static_cast<cudaError_t>(error)));
}

inline void check_has_kernels(const char* op, const Device& device) {
    const int capability = device.traits().capability;
    STD_TORCH_CHECK(device.traits().has_kernels(), op, ": expected a GPU of compute capability 8.0 or newer, got ",
                    capability / 10, ".", capability % 10, " on cuda:", device.index());
}

// How many of an op's m rows, the first ones, run in FP16; the others run in FP8. The mode lives in nestedfp_C; the
// dispatcher is the one door between the two libraries. It is asked once, where.
inline int64_t exact_rows(const char* op, int64_t m) {
    static const ModeInForce* const mode = [] {
        StableIValue stack[1] = {};
        STD_TORCH_CHECK(torch_call_dispatcher("nestedfp::mode_address", "", stack, TORCH_ABI_VERSION) == 0,
                        "nestedfp::linear: nestedfp::mode_address failed; import nestedfp.kernels.ops first");
        return reinterpret_cast<const ModeInForce*>(torch::stable::detail::to<int64_t>(stack[0]));
    }();
    const int64_t exact = mode->exact_of(m);
    STD_TORCH_CHECK(exact >= 0, op, ": expected a mixed step's exact rows before the others on a GPU, got them apart");
    return exact;
}

// Kernels are loaded onto a device by pack; a plane may also have been packed on another one.
inline void prepare_once(const char* op, const Device& device) {
    thread_local std::set<int> prepared;
    if (prepared.count(device.index()) > 0) return;
    check_error(op, prepare_gemm(device.traits()));
    prepared.insert(device.index());
}

inline Tensor empty(const Tensor& like, std::vector<int64_t> shape, ScalarType type) {
    return torch::stable::new_empty(like, {shape.data(), shape.size()}, type);
}

// The shape of a tensor without its last axis.
inline std::vector<int64_t> tokens_of(const Tensor& tensor) {
    std::vector<int64_t> shape;
    for (int64_t i = 0; i + 1 < tensor.dim(); ++i) shape.push_back(tensor.size(i));
    return shape;
}

// FP16, with a row for each of `like`.
inline Tensor empty_rows(const Tensor& like, int64_t columns) {
    std::vector<int64_t> shape = tokens_of(like);
    shape.push_back(columns);
    return empty(like, shape, ScalarType::Half);
}

template <class T>
T* data(const Tensor& tensor) {
    return static_cast<T*>(tensor.mutable_data_ptr());
}

template <class T>
const T* const_data(const Tensor& tensor) {
    return static_cast<const T*>(tensor.const_data_ptr());
}

inline void check_plane(const char* op, const char* name, const Tensor& plane, const Device& device) {
    check_device(op, name, plane, device);
    check_dtype(op, name, plane, ScalarType::Byte);
    check_contiguous(op, name, plane);
}

inline void check_packed_upper(const char* op, const Tensor& upper, int64_t n, int64_t k, const Device& device) {
    STD_TORCH_CHECK(n >= 1 && k >= 1 && n < (int64_t{1} << 31) && k < (int64_t{1} << 31), op,
                    ": expected n and k from 1 to 2^31 - 1, got ", n, " and ", k);
    check_plane(op, "upper", upper, device);
    check_shape(op, "upper", upper, n, upper_pitch(k));
}

inline void check_packed_lower(const char* op, const Tensor& lower, int64_t n, int64_t k, const Device& device) {
    check_plane(op, "lower", lower, device);
    check_vector(op, "lower", lower, lower_bytes(n, k));
}

}  // namespace nestedfp::cuda

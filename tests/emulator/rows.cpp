// Runs the kernels of one block per token on the emulated grid. Standard input: 64-bit integers kernel (0: quantise, 1:
// RMSNorm, 2: the same after adding a residual, 3: SiLU and multiply), exact rows, m, k, pitch of x, seed; then
// FP16 arrays: x ([m, pitch], or [m, 2 * k] of 3), weight [k] and residual [m, k] of the norms. Standard output: the
// carrier ([m, k] FP16 in size; codes [m, k padded to 64] of the quantiser), scales [m], and the sum [m, k] of 2.
#include <cstdio>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "cuda/kernels/layout.h"
#include "cuda_runtime.h"

using namespace nestedfp::cuda;

namespace {

template <class T>
struct alignas(16) Aligned {
    T* data;
    explicit Aligned(int64_t count) : data(static_cast<T*>(operator new(static_cast<size_t>(count) * sizeof(T)))) {}
    Aligned(const Aligned&) = delete;
    ~Aligned() { operator delete(data); }
};

template <class T>
void read(T* to, int64_t count) {
    if (std::fread(to, sizeof(T), static_cast<size_t>(count), stdin) != static_cast<size_t>(count))
        emulator::fail("the input is too short");
}

template <class T>
void write(const T* from, int64_t count) {
    std::fwrite(from, sizeof(T), static_cast<size_t>(count), stdout);
}

}  // namespace

int main() {
    int64_t head[6];
    read(head, 6);
    const int64_t kernel = head[0], exact = head[1], m = head[2], k = head[3], pitch = head[4];
    emulator::launch_defaults().seed = static_cast<unsigned>(head[5]);
    const int64_t x_count = kernel == 3 ? m * 2 * k : (m - 1) * pitch + k;
    const Aligned<uint16_t> x(x_count), weight(k), residual(m * k), sum(m * k), carrier(m * k);
    const Aligned<uint8_t> codes(m * upper_pitch(k));
    const Aligned<float> scales(m);
    for (int64_t i = 0; i < m; ++i) scales.data[i] = -1;
    std::memset(carrier.data, 0xff, static_cast<size_t>(m * k * 2));
    read(x.data, x_count);
    int error = 0;
    if (kernel == 0) {
        error = run_quantize(x.data, pitch, codes.data, scales.data, m, k, true, nullptr);
    } else if (kernel == 3) {
        error = run_silu_and_mul(x.data, carrier.data, scales.data, m, k, exact, true, nullptr);
    } else {
        read(weight.data, k);
        if (kernel == 2) read(residual.data, m * k);
        RowNormArgs args{};
        args.x = x.data;
        args.weight = weight.data;
        args.residual = kernel == 2 ? residual.data : nullptr;
        args.sum = kernel == 2 ? sum.data : nullptr;
        args.carrier = carrier.data;
        args.scales = scales.data;
        args.epsilon = 1e-5f;
        error = run_rms_norm(args, m, k, exact, true, nullptr);
    }
    if (error != cudaSuccess) emulator::fail("the launch was refused");
    if (kernel == 0) {
        write(codes.data, m * upper_pitch(k));
    } else {
        write(carrier.data, m * k);
    }
    write(scales.data, m);
    if (kernel == 2) write(sum.data, m * k);
    return 0;
}

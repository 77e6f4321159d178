// Runs the kernel that joins packed planes on the emulated grid. Standard input: 64-bit integers n, k, first row, rows
// and seed; then the canonical planes, [n, k] bytes each. Standard output: FP16 [rows, k].
#include <cstdio>

#include "cuda/kernels/kernels.h"
#include "cuda_runtime.h"
#include "operands.h"

int main() {
    const auto head = emulator::read<int64_t>(5);
    const int64_t n = head[0], k = head[1], first_row = head[2], rows = head[3];
    emulator::launch_defaults().seed = static_cast<unsigned>(head[4]);
    const emulator::PackedWeight weight(n, k);
    std::vector<uint16_t> out(static_cast<size_t>(rows * k), 0xffff);
    if (nestedfp::cuda::run_join(weight.upper.data(), weight.lower.data(), out.data(), n, k, first_row, rows,
                                 nullptr) != cudaSuccess)
        emulator::fail("the launch was refused");
    std::fwrite(out.data(), sizeof(uint16_t), out.size(), stdout);
    return 0;
}

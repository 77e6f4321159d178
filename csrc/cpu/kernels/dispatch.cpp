// Chooses the kernel table: the only place that asks the processor what it is.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu/kernels/kernels.h"

namespace nestedfp::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#else
bool has_avx2() { return false; }
#endif

const Kernels& choose() {
    const Kernels* const avx2 = has_avx2() ? avx2_kernels() : nullptr;
    const char* const forced = std::getenv("NESTEDFP_CPU_ISA");
    if (forced == nullptr || *forced == '\0') {
        return avx2 != nullptr ? *avx2 : *scalar_kernels();
    }
    const std::string name = forced;
    const Kernels* chosen = nullptr;
    if (name == "scalar") {
        chosen = scalar_kernels();
    } else if (name == "avx2") {
        chosen = avx2;
    } else {
        throw std::runtime_error("NESTEDFP_CPU_ISA: expected scalar or avx2, got '" + name +
                                 "'; unset it to let the processor decide");
    }
    if (chosen == nullptr) {
        throw std::runtime_error("NESTEDFP_CPU_ISA=" + name +
                                 ": this processor (or this build) has no such instructions; unset it or use scalar");
    }
    return *chosen;
}

}  // namespace

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

}  // namespace nestedfp::cpu

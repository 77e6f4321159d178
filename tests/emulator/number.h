// Formats that C++ has no type for.
#pragma once

#include <cmath>
#include <cstdint>

namespace emulator {

inline float e4m3_to_float(uint8_t code) {
    const int exponent = code >> 3 & 0xf, mantissa = code & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    if ((code & 0x7f) == 0x7f) value = NAN;
    return code & 0x80 ? -value : value;
}

}  // namespace emulator

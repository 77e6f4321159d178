// What C++ and Python both define and must agree on. Each library returns its own as text, and
// nestedfp/kernels/shared_constants.py compares when it loads one: sources that are newer than a build, or the other
// way round, are found before a number is computed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "activations.h"
#include "format.h"
#include "precision.h"

namespace nestedfp {

using SharedConstants = std::vector<std::pair<const char*, int64_t>>;

// Of the format, whatever the device.
inline SharedConstants format_constants() {
    return {
        {"format_version", kFormatVersion},
        {"limit_bits", kLimitMagnitude},
        {"upper_scale", kUpperScale},
        {"precision_fp16", static_cast<int64_t>(Precision::kFp16)},
        {"precision_fp8", static_cast<int64_t>(Precision::kFp8)},
        {"e4m3_max", static_cast<int64_t>(kE4m3Max)},
        {"inverse_min_scale", static_cast<int64_t>(kInverseMinScale)},
        {"carrier_columns", kCarrierColumns},
    };
}

// "name=value" for each, separated by spaces: the format's and a library's own.
inline std::string shared_constants_text(const SharedConstants& own) {
    std::string text;
    SharedConstants all = format_constants();
    all.insert(all.end(), own.begin(), own.end());
    for (const auto& [name, value] : all) {
        if (!text.empty()) text += ' ';
        text += std::string(name) + '=' + std::to_string(value);
    }
    return text;
}

}  // namespace nestedfp

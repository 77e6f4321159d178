// Two neighbouring FP16 numbers as a word, and back.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "cuda/device.h"

namespace nestedfp::cuda {

NESTEDFP_DEVICE __half2 halves_of(uint32_t word) {
    __half2 pair;
    memcpy(&pair, &word, sizeof(pair));
    return pair;
}
NESTEDFP_DEVICE uint32_t word_of(__half2 pair) {
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
}

}  // namespace nestedfp::cuda

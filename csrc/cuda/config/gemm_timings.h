// What configs of the GEMM took on this card, timed when an engine starts (nestedfp/kernels/tuning/gemm_tuning.py), and
// what follows for configs and token counts that were not timed: the cost model, corrected by the errors that it made
// nearby.
#pragma once

#include <vector>

#include "cuda/config/gemm.h"

namespace nestedfp::cuda {

// One of them, as seen from a problem.
struct Timing {
    GemmConfig config;
    double log_error;       // log(measured / predicted)
    double tokens_squared;  // how far the token counts are apart, in doublings, squared
};

// Adds one timing of desc's N, K and precision. Thread-safe.
void take_timing(const GemmDesc& desc, const GemmConfig& config, int num_sms, double us);

// Back to the cost model alone.
void forget_timings();

// Changes whenever timings were taken or forgotten, so that whoever remembers a choice knows to ask again.
uint64_t timings_version();

// All timings of desc's N, K and precision, as seen from desc; none if it has many more tokens than any of them.
std::vector<Timing> timings_of(const GemmDesc& desc);

// The predicted microseconds times the errors that the model made in `timings`, weighted by nearness: the same config
// at the same token count counts alone, another tile as much as another split or twice as many tokens.
double corrected_us(const GemmConfig& config, double predicted_us, const std::vector<Timing>& timings);

}  // namespace nestedfp::cuda

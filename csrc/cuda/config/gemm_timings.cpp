#include "cuda/config/gemm_timings.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

namespace nestedfp::cuda {
namespace {

using Key = std::tuple<Precision, int64_t, int64_t>;

struct Taken {
    int64_t m;
    GemmConfig config;
    double log_error;
};

std::mutex mutex;
std::map<Key, std::vector<Taken>> all_timings;
std::atomic<uint64_t> version{0};

Key key_of(const GemmDesc& desc) { return {desc.precision, desc.n, desc.k}; }

// How K is cut: not at all, in a cluster, by Stream-K, by split-K with a global workspace; of the tail or of all tiles.
int kind_of(const GemmConfig& config) {
    const int kind = config.split == 1 ? 0 : !config.global_workspace ? 1 : config.split == kStreamK ? 2 : 3;
    return 2 * kind + config.tail_only;
}

// In doublings of the token count. Weights and the prior were chosen on timings of random problems, of which each token
// count was predicted from those of the others.
double distance_squared(const GemmConfig& config, const Timing& timing) {
    const bool is_same_kind = kind_of(config) == kind_of(timing.config);
    const double split = is_same_kind && config.split == timing.config.split ? 0 : is_same_kind ? 0.5 : 1;
    const double other = (config.tile == timing.config.tile ? 0 : 1) + split;
    return timing.tokens_squared + other * other;
}

constexpr double kNearest = 0.01;  // squared distance below which timings count alike
constexpr double kPriorWeight = 0.1;
// What a config may take longer than predicted, at distance 1 from all that was timed: else a prediction that is too
// low by chance beats the fastest that was timed (by up to 31 % slower).
constexpr double kUncertainty = 0.05;

}  // namespace

void take_timing(const GemmDesc& desc, const GemmConfig& config, int num_sms, double us) {
    const double log_error = std::log(us / predict_us(desc, config, num_sms));
    const std::lock_guard lock(mutex);
    all_timings[key_of(desc)].push_back({desc.m, config, log_error});
    ++version;
}

void forget_timings() {
    const std::lock_guard lock(mutex);
    all_timings.clear();
    ++version;
}

uint64_t timings_version() { return version.load(std::memory_order_relaxed); }

std::vector<Timing> timings_of(const GemmDesc& desc) {
    constexpr double kBeyond = 1.2;
    const std::lock_guard lock(mutex);
    const auto found = all_timings.find(key_of(desc));
    if (found == all_timings.end()) return {};
    std::vector<Timing> seen;
    seen.reserve(found->second.size());
    int64_t most = 0;
    for (const Taken& taken : found->second) {
        most = std::max(most, taken.m);
        const double tokens = std::log2(static_cast<double>(desc.m) / static_cast<double>(taken.m));
        seen.push_back({taken.config, taken.log_error, tokens * tokens});
    }
    return desc.m > kBeyond * most ? std::vector<Timing>{} : seen;
}

double corrected_us(const GemmConfig& config, double predicted_us, const std::vector<Timing>& timings) {
    double weights = kPriorWeight, sum = 0, nearest = 1;
    for (const Timing& timing : timings) {
        const double squared = kNearest + distance_squared(config, timing);
        nearest = std::min(nearest, squared);
        const double weight = 1 / (squared * squared);
        weights += weight;
        sum += weight * timing.log_error;
    }
    return predicted_us * std::exp(sum / weights + kUncertainty * std::sqrt(nearest));
}

}  // namespace nestedfp::cuda

#include "cuda/config/mixed_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

namespace nestedfp::cuda {
namespace {

using ByFastRows = std::map<int64_t, MixedConfig>;

// A config shares the multiprocessors out for the rows that it was measured with.
constexpr double kMostRatio = 1.5;

std::mutex mutex;
std::map<std::pair<int64_t, int64_t>, ByFastRows>& all_choices() {
    static std::map<std::pair<int64_t, int64_t>, ByFastRows> all;
    return all;
}

double ratio(int64_t a, int64_t b) { return static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b)); }

}  // namespace

void take_mixed(int64_t n, int64_t k, int64_t fast_rows, const MixedConfig& config) {
    const std::lock_guard lock(mutex);
    all_choices()[{n, k}][fast_rows] = config;
}

void forget_mixed() {
    const std::lock_guard lock(mutex);
    all_choices().clear();
}

bool choose_mixed(const MixedDesc& desc, int num_sms, MixedConfig* config) {
    {
        const std::lock_guard lock(mutex);
        const auto found = all_choices().find({desc.n, desc.k});
        if (found == all_choices().end()) return false;
        const auto nearest =
            std::min_element(found->second.begin(), found->second.end(), [&](const auto& a, const auto& b) {
                return ratio(a.first, desc.fast_rows) < ratio(b.first, desc.fast_rows);
            });
        if (ratio(nearest->first, desc.fast_rows) > kMostRatio || nearest->second.tile < 0) return false;
        *config = nearest->second;
    }
    MixedPlan plan;
    const char* reason = nullptr;
    return make_plan(desc, *config, num_sms, &plan, &reason);
}

}  // namespace nestedfp::cuda

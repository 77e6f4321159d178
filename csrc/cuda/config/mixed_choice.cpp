#include "cuda/config/mixed_choice.h"

#include <map>
#include <mutex>
#include <utility>

namespace nestedfp::cuda {
namespace {

using ByFastRows = std::map<int64_t, MixedConfig>;

// Beside fewer fast rows than a config was measured with it takes no longer; beside more its blocks may have to go once
// more over the weights. Far fewer would leave most of the blocks of the rest idle.
constexpr double kMostRatio = 1.5;

std::mutex mutex;
std::map<std::pair<int64_t, int64_t>, ByFastRows>& all_choices() {
    static std::map<std::pair<int64_t, int64_t>, ByFastRows> all;
    return all;
}

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
        const auto next = found->second.lower_bound(desc.fast_rows);
        if (next == found->second.end() || next->second.tile < 0) return false;
        if (static_cast<double>(next->first) > kMostRatio * static_cast<double>(desc.fast_rows)) return false;
        *config = next->second;
    }
    MixedPlan plan;
    const char* reason = nullptr;
    return make_plan(desc, *config, num_sms, &plan, &reason);
}

}  // namespace nestedfp::cuda

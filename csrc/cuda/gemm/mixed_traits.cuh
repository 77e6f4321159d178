// A compiled mixed tile: its threads, registers and the map of its shared memory.
#pragma once

namespace nestedfp::cuda {

template <int Exact, int Fast, int MulticastCtas>
struct MixedTraits {
    static constexpr int kExact = Exact;
    static constexpr int kFast = Fast;
    static constexpr int kTokens = Exact + Fast;
    static_assert(Exact % 16 == 0 && Fast % 16 == 0);

    // As TileTraits has them, for the epilogue.
    static constexpr bool kFp16 = false;
    static constexpr int kRowWarpgroups = 2, kKWarpgroups = 1, kMulticastCtas = MulticastCtas;
    static constexpr int kConsumers = kRowWarpgroups;
    static constexpr int kThreads = 128 * (kConsumers + 1);
    static constexpr int kRows = 64 * kRowWarpgroups;
    static constexpr int kAccumulators = kTokens / 2;
    static constexpr bool kLastArriverReduces = false;
    static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

    // Two thread blocks of a cluster load half of the activations each for both, so that L2 delivers them once.
    static constexpr int kExactBox = Exact / MulticastCtas, kFastBox = Fast / MulticastCtas;
    static_assert(kExactBox % 8 == 0 && kFastBox % 8 == 0, "groups of 8 swizzled rows");

    // One ring: a stage is 64 columns of K. Exact activations are FP16 in 128-byte rows, fast ones and the upper plane
    // bytes in 64-byte rows, all swizzled; the lower plane is packed.
    static constexpr int kFastOffset = Exact * 128;
    static constexpr int kUpperOffset = kFastOffset + Fast * 64;
    static constexpr int kPlaneBytes = kRows * 64;
    static constexpr int kLowerOffset = kUpperOffset + kPlaneBytes;
    static constexpr int kStageBytes = kLowerOffset + kPlaneBytes;
    static_assert(kStageBytes % 1024 == 0 && kUpperOffset % 512 == 0);

    static constexpr int kChunkTokens = 32;
    static constexpr int kChunkBytes = kChunkTokens * 128;
    static constexpr int kScaleBytes = kRowWarpgroups * kTokens * 4;
    static constexpr int kEpilogueBytes = kRowWarpgroups * 2 * kChunkBytes + kScaleBytes;
    static constexpr int kBarrierBytes = 512;
    static constexpr int kFitting = (232448 - 1024 - kBarrierBytes - kEpilogueBytes) / kStageBytes;
    static constexpr int kStages = kFitting > 8 ? 8 : kFitting;
    static_assert(kStages >= 3, "fewer than three stages cannot hide memory latency");
    static constexpr int kRingBytes = kStages * kStageBytes;
    static constexpr int kSharedBytes = 1024 + kRingBytes + kEpilogueBytes + kBarrierBytes;  // 1024 to align

    static constexpr int kStagingOffset = kRingBytes;
    static constexpr int kSliceSumOffset = kStagingOffset + kRowWarpgroups * 2 * kChunkBytes;
    static constexpr int kScaleOffset = kSliceSumOffset;
    static constexpr int kFull = kStagingOffset + kEpilogueBytes;
    static constexpr int kEmpty = kFull + kStages * 8;
    static constexpr int kLastPartFlag = kEmpty + kStages * 8;
    static constexpr int kProducerWarps = 4;
};

}  // namespace nestedfp::cuda

// A compiled tile: its threads, registers and the map of its shared memory, all known to the compiler.
#pragma once

#include "cuda/config/tiles.h"

namespace nestedfp::cuda {

template <Precision P, int RowWarpgroups, int KWarpgroups, int Tokens, int BlocksPerSm, int MulticastCtas,
          bool Experts = false>
struct TileTraits {
    static constexpr bool kFp16 = P == Precision::kFp16;
    static constexpr int kRowWarpgroups = RowWarpgroups;
    static constexpr int kKWarpgroups = KWarpgroups;
    static constexpr int kTokens = Tokens;
    static_assert(Tokens % 16 == 0 && Tokens <= 320, "that the epilogue can store and the registers hold");
    static constexpr int kExact = 0;           // not mixed (mixed_sm90.cuh)
    static constexpr bool kExperts = Experts;  // experts_sm90 in gemm_sm90.cuh
    // A box of gates and ups has 128 rows.
    static_assert(!Experts || (kFp16 && RowWarpgroups % 2 == 0 && KWarpgroups == 1 && MulticastCtas == 1));
    static constexpr bool kIsScaled = !kFp16 || Experts;
    static constexpr int kBlocksPerSm = BlocksPerSm;
    static constexpr int kMulticastCtas = MulticastCtas;
    static constexpr Tile kTile = {P, RowWarpgroups, KWarpgroups, Tokens, BlocksPerSm, MulticastCtas};
    static constexpr int kInstructions = kTile.instructions();
    static constexpr int kInstructionTokens = Tokens / kInstructions;
    // The last rows of an expert often fill a part of a tile only. Of so many parts of a tile only those with rows are
    // multiplied, and of so many boxes of activations those with rows loaded.
    static constexpr int kWidths = !Experts ? 1 : Tokens % 32 == 0 && kInstructions == 1 ? 4 : 2;
    static constexpr int kXBoxes = Experts ? 2 : kInstructions;
    static constexpr int kBoxTokens = Tokens / kXBoxes;
    static_assert(Tokens % (8 * kWidths) == 0 && kBoxTokens % 8 == 0);

    static constexpr int kConsumers = RowWarpgroups * KWarpgroups;
    static constexpr int kThreads = 128 * (kConsumers + 1);
    static constexpr int kRows = 64 * RowWarpgroups;
    static constexpr int kSliceCols = kFp16 ? 64 : 128;  // K columns per consumer and stage
    static constexpr int kAccumulators = Tokens / 2;     // per thread
    // Two warpgroups alone hide the decode of the next stage under their own wgmmas. Where two blocks share a
    // multiprocessor or three warpgroups a block, the others' wgmmas hide it, and registers are short.
    static constexpr bool kOverlapDecode = kFp16 && BlocksPerSm == 1 && kConsumers == 2 && kInstructions == 1;
    // Beside more than 256 tokens' sums there are registers for one stage's weights only.
    static constexpr bool kDecodeInPlace = kFp16 && kInstructions == 2;
    // Eight descriptors a stage: to add to a uniform one takes no vector instruction, which pays for making it so.
    static constexpr bool kUniformDescriptors = kInstructions == 2;
    // Up to 192 tokens the decode is interleaved with the wgmmas. At 256 a stage's wgmmas are long enough to hide it as
    // one block, and the fewer live registers matter more.
    static constexpr bool kInterleaveDecode = Tokens <= 192;

    // Who reduces a tile's partial sums from the global workspace. Small sums: the block that arrives last, so that the
    // others make room for the next kernel. Large ones: the block of the last part, which keeps its own in registers.
    static constexpr bool kLastArriverReduces = Tokens <= 64;

    // Ping-pong: three warpgroups take turns on the tensor cores, so that one decodes while another multiplies: 14 % at
    // 128 tokens. At 192, short of registers, it costs 5 %; at 64 and 96 there is too little to hide behind.
    static constexpr bool kPingPong = kFp16 && RowWarpgroups == 3 && Tokens >= 128 && Tokens <= 160;

    // Two rings of stages, because weights leave shared memory two steps before their activations do (they go through
    // registers): one ring would hold their dead bytes for as long. A stage has one part per K slice; a weight stage
    // has the upper parts, then the lower parts.
    static constexpr int kXBytes = Tokens * 128;
    static constexpr int kUpperBytes = kRows * (kFp16 ? 64 : 128);
    static constexpr int kLowerBytes = kFp16 ? kRows * 64 : 0;
    static constexpr int kXStageBytes = KWarpgroups * kXBytes;
    static constexpr int kLowerOffset = KWarpgroups * kUpperBytes;  // in a weight stage
    static constexpr int kWeightStageBytes = kLowerOffset + KWarpgroups * kLowerBytes;

    // Epilogue: per row warpgroup two buffers of some tokens x 64 rows in FP16, the sums of the other K slices, token
    // scales.
    static constexpr int kChunkTokens = Tokens < 32 ? Tokens : 32;
    static constexpr int kChunkBytes = kChunkTokens * 128;
    static constexpr int kSliceSumBytes = (KWarpgroups - 1) * RowWarpgroups * Tokens * 256;
    static constexpr int kScaleBytes = (kIsScaled + kExperts) * RowWarpgroups * Tokens * 4;  // of experts rows of D too
    static constexpr int kEpilogueBytes = RowWarpgroups * 2 * kChunkBytes + kSliceSumBytes + kScaleBytes;

    static constexpr int kSharedLimit = BlocksPerSm == 1 ? 232448 : 115712;  // bytes that a block may have
    static constexpr int kBarrierBytes = 512;
    static constexpr int kRingLimit = kSharedLimit - 1024 - kBarrierBytes - kEpilogueBytes;
    static constexpr int kMaxStages = 12;
    static constexpr int kExtraXStages = kOverlapDecode && kInterleaveDecode ? 2 : 0;
    static constexpr int kFitting = (kRingLimit - kExtraXStages * kXStageBytes) / (kXStageBytes + kWeightStageBytes);
    static constexpr int kXFitting = (kRingLimit - kFitting * kWeightStageBytes) / kXStageBytes;
    static constexpr int kXStages = kXFitting > kMaxStages ? kMaxStages : kXFitting;
    static constexpr int kWeightFitting = (kRingLimit - kXStages * kXStageBytes) / kWeightStageBytes;
    static constexpr int kWeightStages = kWeightFitting > kMaxStages ? kMaxStages : kWeightFitting;
    static constexpr int kRingBytes = kXStages * kXStageBytes + kWeightStages * kWeightStageBytes;
    static constexpr int kSharedBytes = 1024 + kRingBytes + kEpilogueBytes + kBarrierBytes;  // 1024 to align
    static_assert(kWeightStages >= 3 && kXStages >= 3, "fewer than three stages cannot hide memory latency");

    // Offsets from the first stage of activations.
    static constexpr int kWeightsOffset = kXStages * kXStageBytes;
    static constexpr int kStagingOffset = kRingBytes;
    static constexpr int kSliceSumOffset = kStagingOffset + RowWarpgroups * 2 * kChunkBytes;
    static constexpr int kScaleOffset = kSliceSumOffset + kSliceSumBytes;
    // Barriers: a stage of activations is there, or may be overwritten; likewise of weights.
    static constexpr int kXFull = kStagingOffset + kEpilogueBytes;
    static constexpr int kXEmpty = kXFull + kXStages * 8;
    static constexpr int kWeightsFull = kXEmpty + kXStages * 8;
    static constexpr int kWeightsEmpty = kWeightsFull + kWeightStages * 8;
    // Per row warpgroup.
    static constexpr int kLastPartFlag = kXFull + 2 * 8 * (kXStages + kWeightStages);
    // Of experts: the block's next tile is there, or may be overwritten; then the tile and its width.
    static constexpr int kNextFull = kLastPartFlag + 8 * ((RowWarpgroups + 1) / 2);
    static constexpr int kNextEmpty = kNextFull + 8;
    static constexpr int kNext = kNextEmpty + 8;
    static_assert(kNext + 8 <= kXFull + kBarrierBytes);

    static constexpr int kProducerRegisters = BlocksPerSm == 2 || kInstructions == 2 ? 24 : kConsumers == 2 ? 40 : 24;
    static constexpr int kConsumerRegisters = BlocksPerSm == 2     ? 104
                                              : kInstructions == 2 ? 240
                                              : kConsumers == 2    ? 232
                                              : kConsumers == 3    ? 160
                                                                   : 112;
    static constexpr int kProducerWarps = kFp16 ? 3 : 2;
};

}  // namespace nestedfp::cuda

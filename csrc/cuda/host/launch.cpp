// run_gemm: tensor maps, cache policies, and the call into the compiled tile.
#include "cuda/host/launch.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "cuda/gemm/kernel_args.h"
#include "cuda/kernels/layout.h"

namespace nestedfp::cuda {

// Of launch_tile.cuh, in the files that cuda/generate_tiles.py writes.
template <Precision P, int... Tile>
cudaError_t prepare();
template <Precision P, int... Tile>
cudaError_t launch(const CUtensorMap&, const CUtensorMap&, const KernelArgs&, bool pdl, cudaStream_t);
template <int... Tile>
cudaError_t prepare_mixed();
template <int... Tile>
cudaError_t launch_mixed(const MixedKernelArgs&, bool pdl, cudaStream_t);
template <int RowWarpgroups, int Tokens>
cudaError_t prepare_experts();
template <int RowWarpgroups, int Tokens>
cudaError_t launch_experts(const ExpertsKernelArgs&, cudaStream_t);

namespace {

constexpr struct {
    cudaError_t (*prepare)();
    cudaError_t (*launch)(const CUtensorMap&, const CUtensorMap&, const KernelArgs&, bool, cudaStream_t);
} kTileFunctions[] = {
#define NESTEDFP_TILE(precision, ...) \
    {&prepare<Precision::precision, __VA_ARGS__>, &launch<Precision::precision, __VA_ARGS__>},
#include "cuda/tiles.inc"
#undef NESTEDFP_TILE
};

constexpr struct {
    cudaError_t (*prepare)();
    cudaError_t (*launch)(const MixedKernelArgs&, bool, cudaStream_t);
} kMixedTileFunctions[] = {
#define NESTEDFP_MIXED_TILE(...) {&prepare_mixed<__VA_ARGS__>, &launch_mixed<__VA_ARGS__>},
#include "cuda/mixed_tiles.inc"
#undef NESTEDFP_MIXED_TILE
};

constexpr struct {
    Tile tile;
    cudaError_t (*prepare)();
    cudaError_t (*launch)(const ExpertsKernelArgs&, cudaStream_t);
} kExpertsTiles[] = {
#define NESTEDFP_EXPERTS_TILE(row_warpgroups, tokens)     \
    {{Precision::kFp16, row_warpgroups, 1, tokens, 1, 1}, \
     &prepare_experts<row_warpgroups, tokens>,            \
     &launch_experts<row_warpgroups, tokens>},
#include "cuda/experts_tiles.inc"
#undef NESTEDFP_EXPERTS_TILE
};

// Token tiles, by a little the fastest; where tiles are narrow, most experts have one, which shares its weights with
// none.
constexpr int kExpertsRasterGroup = 4, kNarrowRasterGroup = 1;

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing links against libcuda and machines without a driver can still load the module.
EncodeTiled encode_tiled() {
    static const EncodeTiled function = [] {
        void* symbol = nullptr;
        cudaDriverEntryPointQueryResult found{};
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &found);
        return reinterpret_cast<EncodeTiled>(found == cudaDriverEntryPointSuccess ? symbol : nullptr);
    }();
    return function;
}

// Of fields of one size, so that matrices can be compared and hashed by their bytes.
struct Matrix {
    const void* data;
    int64_t element_bytes;
    int64_t cols, rows, pitch_bytes;
    int64_t box_cols, box_rows;
    // Boxes of 64 bytes a row that wgmmas read; those of 128 bytes are swizzled in any case.
    int64_t is_swizzled = 0;
    // Rows from a gate's to its up, or 0. A box then has the rows of 64 gates and their ups, by eights in turn, in the
    // order that makes their results interleaved as activations are (kernels/experts/experts_grouped.py).
    int64_t gate_rows = 0;

    std::string_view bytes() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
    bool operator==(const Matrix& other) const { return bytes() == other.bytes(); }
};
static_assert(std::has_unique_object_representations_v<Matrix>);

struct MatrixHash {
    size_t operator()(const Matrix& matrix) const { return std::hash<std::string_view>{}(matrix.bytes()); }
};

bool encode(CUtensorMap* map, const Matrix& matrix) {
    const EncodeTiled function = encode_tiled();
    if (function == nullptr) return false;
    const bool is_gated = matrix.gate_rows > 0;
    const auto cols = static_cast<cuuint64_t>(matrix.cols),
               rows = static_cast<cuuint64_t>(matrix.rows - matrix.gate_rows);
    const auto pitch = static_cast<cuuint64_t>(matrix.pitch_bytes), gates = static_cast<cuuint64_t>(matrix.gate_rows);
    // Of gates: columns; neighbours in a pair, threads, gate and up, and steps and halves. They overlap in memory.
    const cuuint64_t sizes[5] = {cols, rows, 4, 2, 8};
    const cuuint64_t pitches[4] = {pitch, 16 * pitch, gates * pitch, 2 * pitch};
    const cuuint32_t box[5] = {static_cast<cuuint32_t>(matrix.box_cols),
                               is_gated ? 2 : static_cast<cuuint32_t>(matrix.box_rows), 4, 2, 8};
    const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
    const int64_t row_bytes = matrix.box_cols * matrix.element_bytes;
    const CUtensorMapSwizzle swizzle = row_bytes == 128          ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : matrix.is_swizzled != 0 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
    return function(map, matrix.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                    is_gated ? 5 : 2, const_cast<void*>(matrix.data), sizes, pitches, box, element_strides,
                    CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The map of a matrix, or null. A map depends on nothing but the matrix, address included, so those of the weights, and
// of activations that the allocator puts where others were, are encoded once.
const CUtensorMap* tensor_map(const Matrix& matrix) {
    constexpr size_t kRemembered = 1 << 14;
    thread_local std::unordered_map<Matrix, CUtensorMap, MatrixHash> remembered;
    if (remembered.size() >= kRemembered) remembered.clear();
    const auto [found, is_new] = remembered.try_emplace(matrix);
    if (is_new && !encode(&found->second, matrix)) {
        remembered.erase(found);
        return nullptr;
    }
    return &found->second;
}

// Of `rows` rows; everything but the cache policies.
KernelArgs kernel_args_of(const GemmArgs& args, int64_t rows, int64_t n, int64_t k, const GemmPlan& plan) {
    KernelArgs made{};
    made.lower = args.lower;
    if (args.neutral_lower) {
        made.lower += neutral_offset(n, k);
    } else {
        made.lower_row_stride = lower_col_blocks(k) * kBlockBytes;
        made.lower_col_stride = kBlockBytes;
    }
    made.lower_row_blocks = static_cast<int>(lower_row_blocks(n));
    made.token_scale = args.token_scale;
    made.bias = static_cast<const __half*>(args.bias);
    made.out = static_cast<__half*>(args.out);
    made.outliers = args.outliers;
    made.m = static_cast<int>(rows);
    made.n = static_cast<int>(n);
    made.plan = plan;
    made.workspace = args.workspace;
    made.semaphores = args.semaphores;
    return made;
}

bool lacks_scratch(const GemmArgs& args, bool is_needed, const char** message) {
    const bool lacks = is_needed && (args.workspace == nullptr || args.semaphores == nullptr);
    if (lacks) *message = "split-K with a global workspace needs a workspace and semaphores";
    return lacks;
}

}  // namespace

int prepare_device() {
    for (const auto& tile : kTileFunctions) {
        if (const cudaError_t error = tile.prepare(); error != cudaSuccess) return error;
    }
    for (const auto& tile : kMixedTileFunctions) {
        if (const cudaError_t error = tile.prepare(); error != cudaSuccess) return error;
    }
    for (const auto& each : kExpertsTiles) {
        if (const cudaError_t error = each.prepare(); error != cudaSuccess) return error;
    }
    return prepare_semaphores();
}

int run_gemm(const GemmDesc& desc, const GemmConfig& config, const GemmArgs& args, int num_sms, cudaStream_t stream,
             const char** message) {
    if (!is_valid(desc, config, num_sms, message)) return cudaErrorInvalidValue;
    const Tile& tile = kTiles[config.tile];
    const bool is_fp16 = desc.precision == Precision::kFp16;
    const int64_t pitch = upper_pitch(desc.k);

    const int x_bytes = is_fp16 ? 2 : 1;
    const CUtensorMap* const found_x = tensor_map(
        {args.x, x_bytes, is_fp16 ? desc.k : pitch, desc.m, args.x_pitch * x_bytes, 128 / x_bytes, tile.box_tokens()});
    if (found_x == nullptr) {
        *message = "x must be aligned to 16 bytes, and so must its rows";
        return cudaErrorInvalidValue;
    }
    const CUtensorMap x_map = *found_x;  // the next one may move it
    const CUtensorMap* const upper_map =
        tensor_map({args.upper, 1, pitch, desc.n, pitch, is_fp16 ? 64 : 128, tile.rows()});
    if (upper_map == nullptr) {
        *message = "the packed upper plane must be aligned to 16 bytes";
        return cudaErrorInvalidValue;
    }

    KernelArgs kernel_args = kernel_args_of(args, desc.m, desc.n, desc.k, make_plan(desc, config, num_sms));
    if (lacks_scratch(args, kernel_args.plan.work_units > 0, message)) return cudaErrorInvalidValue;
    // Weights that are read once must not push the activations out of L2.
    const bool is_one_pass = kernel_args.plan.token_tiles == 1;
    kernel_args.weight_policy = is_one_pass ? kEvictFirst : kEvictNormal;
    kernel_args.x_policy = is_one_pass ? kEvictLast : kEvictNormal;

    const cudaError_t error = kTileFunctions[config.tile].launch(x_map, *upper_map, kernel_args, args.pdl, stream);
    if (error != cudaSuccess) *message = cudaGetErrorString(error);
    return error;
}

int run_mixed(const MixedDesc& desc, const MixedConfig& config, const GemmArgs& args, int num_sms, cudaStream_t stream,
              const char** message) {
    MixedPlan plan;
    if (!make_plan(desc, config, num_sms, &plan, message)) return cudaErrorInvalidValue;
    const MixedTile& tile = kMixedTiles[config.tile];
    const int64_t pitch = upper_pitch(desc.k), rest_rows = std::max<int64_t>(0, desc.fast_rows - tile.fast);
    const int part = tile.multicast_ctas;
    MixedKernelArgs all{};
    struct {
        CUtensorMap* to;
        Matrix matrix;
    } const maps[] = {
        {&all.exact_map, {args.x, 2, desc.k, desc.exact_rows, args.x_pitch * 2, 64, tile.exact / part}},
        {&all.fast_map, {args.codes, 1, pitch, desc.fast_rows, pitch, 64, tile.fast / part, true}},
        {&all.upper_map, {args.upper, 1, pitch, desc.n, pitch, 64, MixedTile::kRows, true}},
        {&all.rest_map, {args.codes + tile.fast * pitch, 1, pitch, rest_rows, pitch, 128, tile.rest_tokens / part}},
        {&all.rest_upper_map, {args.upper, 1, pitch, desc.n, pitch, 128, MixedTile::kRows}},
    };
    for (const auto& [to, matrix] : maps) {
        if (matrix.rows == 0) continue;
        const CUtensorMap* const map = tensor_map(matrix);
        if (map == nullptr) {
            *message = "x, its rows, the codes and the packed upper plane must be aligned to 16 bytes";
            return cudaErrorInvalidValue;
        }
        *to = *map;
    }
    KernelArgs& mixed = all.mixed;
    mixed = kernel_args_of(args, tile.exact + tile.fast, desc.n, desc.k, plan.mixed);
    mixed.exact_rows = static_cast<int>(desc.exact_rows);
    mixed.fast_rows = static_cast<int>(std::min<int64_t>(desc.fast_rows, tile.fast));
    mixed.weight_policy = mixed.x_policy = kEvictNormal;
    all.rest = mixed;
    all.rest.m = static_cast<int>(rest_rows);
    all.rest.token_scale += tile.fast;
    all.rest.out += (desc.exact_rows + tile.fast) * desc.n;
    all.rest.plan = plan.rest;
    if (args.workspace != nullptr) all.rest.workspace += plan.mixed_workspace_bytes / 4;
    if (args.semaphores != nullptr) all.rest.semaphores += kSemaphores / 2;
    if (lacks_scratch(args, plan.mixed_workspace_bytes + plan.rest_workspace_bytes > 0, message))
        return cudaErrorInvalidValue;
    const cudaError_t error = kMixedTileFunctions[config.tile].launch(all, args.pdl, stream);
    if (error != cudaSuccess) *message = cudaGetErrorString(error);
    return error;
}

int run_experts(const ExpertsDesc& desc, const ExpertsArgs& args, int num_sms, cudaStream_t stream,
                const char** message) {
    const auto* const found = std::find_if(std::begin(kExpertsTiles), std::end(kExpertsTiles),
                                           [&](const auto& each) { return each.tile.tokens == desc.tile_rows; });
    if (found == std::end(kExpertsTiles)) {
        *message = "no tile of so many rows is compiled";
        return cudaErrorInvalidValue;
    }
    const Tile& tile = found->tile;
    const int64_t rows_of_all = desc.experts * desc.n, gates = desc.is_gated ? desc.n / 2 : 0;
    ExpertsKernelArgs made{};
    const std::pair<CUtensorMap*, Matrix> maps[] = {
        {&made.x_map, {args.x, 2, desc.k, desc.rows, desc.k * 2, 64, tile.tokens / 2}},
        {&made.upper_map, {args.upper, 1, desc.k, rows_of_all, desc.k, 64, tile.rows(), 0, gates}},
        {&made.lower_map, {args.lower, 1, desc.k, rows_of_all, desc.k, 64, tile.rows(), 0, gates}},
    };
    for (const auto& [to, matrix] : maps) {
        const CUtensorMap* const map = tensor_map(matrix);
        if (map == nullptr) {
            *message = "x and the planes must be aligned to 16 bytes, or the driver has no map for them";
            return cudaErrorInvalidValue;
        }
        *to = *map;
    }
    KernelArgs& gemm = made.gemm;
    gemm.token_scale = args.scales;
    gemm.out = static_cast<__half*>(args.out);
    gemm.semaphores = args.semaphores;
    gemm.n = static_cast<int>(desc.is_gated ? gates : desc.n);
    gemm.experts = {args.row_ids, static_cast<int>(desc.valid), args.tile_experts, args.padded_rows, desc.is_gated};
    gemm.x_policy = gemm.weight_policy = kEvictNormal;
    GemmPlan& plan = gemm.plan;
    plan.row_tiles = static_cast<int>((desc.n + tile.rows() - 1) / tile.rows());
    plan.raster_group = tile.row_warpgroups == 4 ? kNarrowRasterGroup : kExpertsRasterGroup;
    plan.raster_group_tiles = plan.raster_group * plan.row_tiles;
    plan.steps = static_cast<int>((desc.k + tile.step() - 1) / tile.step());
    plan.cluster = 1;
    plan.blocks = static_cast<int>(std::min<int64_t>(num_sms * tile.blocks_per_sm, desc.token_tiles * plan.row_tiles));
    const cudaError_t error = found->launch(made, stream);
    if (error != cudaSuccess) *message = cudaGetErrorString(error);
    return error;
}

}  // namespace nestedfp::cuda

// Tensor maps as what they say; hopper.h reads them.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"

struct CUtensorMap {
    const uint8_t* data;
    int element_bytes;
    int64_t cols, rows;
    int box_cols, box_rows;  // rows of all dimensions together
    int swizzle_bytes;       // 0: plain rows
    int rank;
    // Of each dimension after the columns: how many a box has, and bytes from one to the next.
    int counts[4];
    int64_t pitches[4];
};

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT8 = 1, CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 2 };  // bytes
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle {
    CU_TENSOR_MAP_SWIZZLE_NONE,
    CU_TENSOR_MAP_SWIZZLE_64B = 64,
    CU_TENSOR_MAP_SWIZZLE_128B = 128
};
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

// Of two dimensions, or five whose last three begin at 0 in every box.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                       const cuuint64_t* sizes, const cuuint64_t* pitches, const cuuint32_t* box,
                                       const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    if (box[0] > 256 || box[1] > 256 || box[0] * type % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && box[0] * type > static_cast<unsigned>(swizzle))
        return CUDA_ERROR_INVALID_VALUE;
    *map = {static_cast<const uint8_t*>(data), type,
            static_cast<int64_t>(sizes[0]),    static_cast<int64_t>(sizes[1]),
            static_cast<int>(box[0]),          1,
            swizzle,                           static_cast<int>(rank),
            {},                                {}};
    for (cuuint32_t i = 1; i < rank; ++i) {
        if (pitches[i - 1] % 16 != 0 || (i > 1 && sizes[i] != box[i])) return CUDA_ERROR_INVALID_VALUE;
        map->counts[i - 1] = static_cast<int>(box[i]);
        map->pitches[i - 1] = static_cast<int64_t>(pitches[i - 1]);
        map->box_rows *= static_cast<int>(box[i]);
    }
    return CUDA_SUCCESS;
}

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };

inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** symbol, unsigned, int,
                                                    cudaDriverEntryPointQueryResult* found) {
    *found = cudaDriverEntryPointSuccess;
    if (std::strcmp(name, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
    *symbol = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
    return cudaSuccess;
}

// Walks the listed weights of a row.
#pragma once

#include "cuda/config/gemm.h"
#include "cuda/device.h"

namespace nestedfp::cuda {

// The first entry of a row, or -1.
NESTEDFP_DEVICE int first_outlier(const OutlierList& list, int64_t row) {
    int low = 0, high = list.count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (list.rows[middle] < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < list.count && list.rows[low] == row ? low : -1;
}

// The row's next entry, or -1.
NESTEDFP_DEVICE int next_outlier(const OutlierList& list, int i) {
    return i + 1 < list.count && list.rows[i + 1] == list.rows[i] ? i + 1 : -1;
}

}  // namespace nestedfp::cuda

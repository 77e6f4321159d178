// Semaphores of split-K with a global workspace: zeros in device memory that count the partial sums that are there.
// Each stream has a set, allocated once per device; GEMMs of one stream run one after another and use the same.
#pragma once

struct CUstream_st;

namespace nestedfp::cuda {

// Allocates the current device's semaphores. Allocates nothing the second time. Returns a cudaError_t.
int prepare_semaphores();

// kSemaphores zeros of the current device for GEMMs on `stream`; null before prepare_semaphores, or when more streams
// ask than there are sets. A captured graph keeps those of the stream it was captured on, as it keeps cuBLAS's
// workspace: graphs captured on one stream must not be replayed at the same time.
int* stream_semaphores(CUstream_st* stream);

}  // namespace nestedfp::cuda

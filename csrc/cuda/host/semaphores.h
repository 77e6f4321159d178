// Counters of the GEMMs whose parts meet in device memory: a few zeros per stream, allocated once per device. GEMMs of
// one stream run one after another and share them.
#pragma once

struct CUstream_st;

namespace nestedfp::cuda {

// Allocates the current device's counters. Allocates nothing the second time. Returns a cudaError_t.
int prepare_counters();

// kCounters zeros of the current device for GEMMs on `stream`; null before prepare_counters, or when more streams ask
// than there are counters for. A captured graph keeps those of the stream it was captured on, as it keeps cuBLAS's
// workspace: graphs captured on one stream must not be replayed at the same time.
int* stream_counters(CUstream_st* stream);

}  // namespace nestedfp::cuda

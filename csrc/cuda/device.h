// How a function of device code is declared.
#pragma once

#define NESTEDFP_DEVICE __device__ __forceinline__

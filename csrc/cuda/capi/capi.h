// How a C function is declared.
#pragma once

#define NESTEDFP_API extern "C" __attribute__((visibility("default")))

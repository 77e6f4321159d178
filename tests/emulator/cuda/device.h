// Device code as plain C++.
#pragma once

#define NESTEDFP_DEVICE inline

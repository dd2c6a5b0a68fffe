"""Which kernels may be parked, what that costs and what it frees."""

"""Which kernels may be parked, and what that costs and brings."""

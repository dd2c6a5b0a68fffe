"""Which kernels make room for a waiter, and how."""

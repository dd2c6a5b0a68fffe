"""Which kernels get room: waiters, and kernels that are about to be used."""

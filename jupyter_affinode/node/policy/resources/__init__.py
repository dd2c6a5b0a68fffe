"""What there is beside GPU memory: quotas, host memory, disk."""

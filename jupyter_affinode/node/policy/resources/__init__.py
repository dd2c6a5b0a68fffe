"""Resources beside GPU memory: quotas, host memory, disk."""

"""The kernel provisioner: starting kernels with the shim preloaded."""

"""What the controller knows: kernels, processes, GPUs, host memory."""

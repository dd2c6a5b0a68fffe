"""Records of kernels, processes and moves."""

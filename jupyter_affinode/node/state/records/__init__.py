"""What the controller remembers of kernels, processes and moves."""

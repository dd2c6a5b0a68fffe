"""Commands about kernels: where their GPU memory is, parks and resumes, kept and warm ones."""

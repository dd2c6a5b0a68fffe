"""What runs inside kernels, in any Python from 3.8 on: files that import nothing else of this package."""

"""Slurm: notebooks that are jobs share GPUs. What a site's Slurm is told, and what its scripts do for each job.

All that Slurm calls is Python here (`hooks.py`); its scripts are two lines of shell that start it. Slurm decides which
job runs where, and the machine's controller, which of their kernels has the GPU.
"""

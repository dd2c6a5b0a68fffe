"""`jupyter affinode bench`: how fast this machine parks and resumes, beside a plain copy.

Everything is measured in one run, in processes of the bench's own that use the CUDA driver API alone.
"""

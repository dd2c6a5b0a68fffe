"""The node controller: the one arbiter of a machine's GPUs.

It watches the kernels' shims over the link and their pages, decides by a pure function what to park and
resume, and tells them; servers and users reach it through its HTTP API. Run it with `jupyter affinode
node`. Imports nothing of ours but the list of environment variables and the version.
"""

"""Kernels that outlive their server.

A kernel is *kept* while no server has it. What keeps it is one small program for each user, the keeper: servers tell
it what adopting each of their kernels would take, and hold a connection to it. When the connection ends, after a
hand-over or because the server was killed, the keeper has the kernel: it puts the kernel's output aside, and ends the
kernel when it was kept for too long. The next server of the same user, name and root folder adopts it.

Four calls say all (`Keeper` in client.py): `own` (and `hand_over`), `adopt`, `list_kept`, `end`. What is kept is a
`Record`; its `place` says where the kernel is. `"process"`, a process that runs on, is the first such place.
"""

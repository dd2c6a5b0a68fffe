"""Images: a kernel's processes in a folder on disk, with what they had on the GPU.

What was on the GPU the shim of each process writes itself, before, into a file of the image. The process, which is
small and plain by then, is written by CRIU: a program that is called, so its licence (GPL) concerns nothing here. So
this package knows nothing of CUDA, and the shim nothing of CRIU.

| module | what it does |
|---|---|
| `hibernate.py` | a kernel into an image, and back; what is undone when a step fails |
| `store.py` | the folder that has a user's images: how much they may take, when they go by age |
| `image.py`, `signing.py` | an image: its files, its manifest, when it is whole, whether it was changed |
| `pages.py` | contents of the processes' memory: compressed in an image, plain for CRIU |
| `kernel_processes.py` | a kernel's processes, and what another program gave them |
| `checks.py`, `unix_sockets.py` | what stands against writing processes, looked at before anything is done |
| `machine.py`, `files.py` | what stands against waking them: another machine, files, locks, terminals, ports |
| `terminals.py` | the numbers of terminals, held while a kernel is away |
| `disk.py` | the disk of a folder: whether it is one, and whether it is encrypted |
| `criu.py` | finds CRIU, calls it, and says in words why it refused |
| `criu_files.py` | what is changed in what CRIU wrote |
| `tree.py`, `seen.py` | the processes of a kernel: ended, gone, going on; one as /proc shows it |
"""

"""Images: a kernel's processes in a folder on disk, with what they had on the GPU.

What was on the GPU the shim of each process writes itself, before, into a file of the image. The process, which is
small and plain by then, is written by CRIU: a program that is called, so its licence (GPL) concerns nothing here. So
this package knows nothing of CUDA, and the shim nothing of CRIU.

| module | what it does |
|---|---|
| `criu.py` | finds CRIU, calls it, and says in words why it refused |
| `image.py` | an image: its files, its manifest, when it is whole, whether it was changed |
| `tree.py` | the processes of a kernel: frozen, ended, gone |
| `hibernate.py` | a kernel into an image, and back; what is undone when a step fails |
"""

# Run by PYTHONSTARTUP in the namespace of a user's interactive Python (IPython, ipykernel or plain `python
# -i`), in whatever environment that Python lives: it must leave no name there and need nothing but the
# standard library, Python 3.8 or later. It restores and runs the PYTHONSTARTUP that was there before, and in
# IPython registers the `%gpu_…` magics of kernel/magics.py, the file beside this one. (No docstring: it would
# replace the namespace's.)


def _affinode_startup(namespace):
    import importlib.util
    import os
    import sys

    path = os.path.join(os.path.dirname(os.environ.get("PYTHONSTARTUP", "")), "magics.py")
    try:
        spec = importlib.util.spec_from_file_location("_affinode_kernel_magics", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except (OSError, SyntaxError, AttributeError) as error:
        print(f"affinode: the GPU magics could not be loaded from {path}: {error}", file=sys.stderr)
    else:
        module.start_in_kernel(namespace)


try:
    _affinode_startup(globals())
finally:
    del _affinode_startup

"""`jupyter affinode run -- COMMAND`: start a kernel (or any program) managed, without our provisioner."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ... import environment
from ...provisioning.preload import Unmanaged, manage
from ...python_command import module_command

CONNECTION_FILE = re.compile(r"kernel-([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\.json$")
DESCRIPTION = """Start COMMAND so that its use of the GPU is managed, as kernels of a Jupyter server with
our extension are. COMMAND takes this process's place, so signals and exit statuses are its own. For front
ends that start kernels by themselves; see also `kernelspec wrap`. An interrupt cannot reach a call that
waits for the GPU here, since the front end does not tell us of it; `jupyter affinode status` shows the
wait."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("run", help="start a program managed", description=DESCRIPTION)
    parser.add_argument("words", metavar="-- COMMAND", nargs=argparse.REMAINDER)
    parser.set_defaults(command=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by COMMAND; return only if it cannot be started. If the shim cannot be preloaded,
    COMMAND starts without it."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        arguments.parser.error("say which command to run")
    env = dict(os.environ)
    kernel_id = kernel_id_of(words, env)
    try:
        manage(env, kernel_id, words)
        _introduce(kernel_id, words)
    except Unmanaged as reason:
        print(f"affinode: not managed: {reason}", file=sys.stderr)
    try:
        os.execvpe(words[0], words, env)
    except OSError as error:
        print(f"jupyter affinode run: {words[0]}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def kernel_id_of(words: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the Jupyter kernel id: from the environment, from the connection file's name, or a new one.

    Jupyter servers name connection files kernel-<id>.json, so the server and the controller use the same id.
    """
    if env.get(environment.KERNEL_ID):
        return env[environment.KERNEL_ID]
    for word in words:
        found = CONNECTION_FILE.search(word)
        if found:
            return found.group(1)
    return str(uuid.uuid4())


def program_name(words: Sequence[str]) -> str:
    """Return what a program is called in lists: its name, and the file that it runs, as in "python train.py".

    Other arguments are left out: they may be secret.
    """
    file = next(
        (
            word
            for word in words[1:]
            if not word.startswith("-") and not CONNECTION_FILE.search(word) and os.path.isfile(word)
        ),
        None,
    )
    names = words[:1] if file is None else (words[0], file)
    return " ".join(map(os.path.basename, names))


def _introduce(kernel_id: str, words: Sequence[str]) -> None:
    """Start the controller and describe the kernel, in a process that is no child of this one.

    The command must not wait for it, and must not find a child that it never started.
    """
    announced = _announce_start()
    middle = os.fork()
    if middle == 0:
        code = 1
        try:
            env = dict(os.environ)
            for name in (environment.SOCKET, environment.GRANT_FILE):
                if env.get(name):
                    env[name] = os.path.abspath(env[name])
            subprocess.Popen(
                module_command(
                    "jupyter_affinode.cli.programs.register",
                    kernel_id,
                    program_name(words),
                    *map(str, announced),
                ),
                env=env,
                pass_fds=announced,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            code = 0
        finally:
            os._exit(code)
    os.waitpid(middle, 0)


def _announce_start() -> list[int]:
    """Show processes on a full GPU that a controller is about to be started: they wait for it.

    Returns the descriptor of a lock that the process that starts it closes; none where one is being started already.
    """
    try:
        path = environment.socket_path().with_name(environment.START_LOCK_NAME)
        descriptor = os.open(path, environment.LOCK_FLAGS, 0o600)
    except OSError:
        return []
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return []
    return [descriptor]

"""`jupyter affinode simulate -- COMMAND`: a machine with a simulated GPU for one command, to try things
out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ... import environment
from ...client.errors import ControllerUnavailable
from ...client.starting import end_controller, ensure_controller

DESCRIPTION = """Run COMMAND with the simulated GPU (AFFINODE_SIM=1), for example jupyter lab. Unless
AFFINODE_SIM_DIR names one, COMMAND gets a simulated machine of its own, with its own controller; both end
with it. With --all-users, as root, that machine and its controller are all users', as for a JupyterHub that starts
each server as its Unix user. Refused where there is a real driver. No figure from it is GPU performance."""

STARTS_WITHIN_S = 30.0
MACHINE = "machine"  # the simulated driver's file, shared by all processes on the machine


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate", help="run a program with a simulated GPU", description=DESCRIPTION
    )
    parser.add_argument(
        "--all-users",
        action="store_true",
        help="a machine for all users, with the controller of all users; as root",
    )
    parser.add_argument("words", metavar="-- COMMAND", nargs=argparse.REMAINDER)
    parser.set_defaults(command=simulate, parser=parser)


def simulate(arguments: argparse.Namespace) -> int:
    """Run COMMAND and return its exit status; 1 if simulating is refused."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        arguments.parser.error("say which command to run")
    try:
        libraries = environment.simulation_folder()
    except environment.SimulationRefused as refused:
        print(f"jupyter affinode simulate: {refused}.", file=sys.stderr)
        return 1
    env = dict(os.environ)
    env[environment.SIM] = "1"
    folders = [str(libraries), *filter(None, env.get("LD_LIBRARY_PATH", "").split(":"))]
    env["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(folders))
    if env.get(environment.SIM_DIR) and not arguments.all_users:
        return _run(words, env)
    if arguments.all_users and os.getuid() != 0:
        print("jupyter affinode simulate: --all-users takes root.", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="affinode-sim-", dir="/tmp"))
    env[environment.SIM_DIR] = str(folder)
    socket = folder / environment.SOCKET_NAME
    env[environment.SOCKET] = str(socket)
    try:
        if arguments.all_users:
            _open_to_all_users(folder)
            os.environ.update(env)  # what a controller is started with
            ensure_controller(socket, extra_args=["--system"], timeout_s=STARTS_WITHIN_S)
        return _run(words, env)
    except ControllerUnavailable as error:
        print(f"jupyter affinode simulate: {error}", file=sys.stderr)
        return 1
    finally:
        end_controller(socket)
        shutil.rmtree(folder, ignore_errors=True)


def _open_to_all_users(folder: Path) -> None:
    """Let the processes of all users use the simulated GPU. Unlike a real driver, any of them can break it."""
    folder.chmod(0o755)
    machine = folder / MACHINE
    machine.touch()
    machine.chmod(0o666)


def _run(words: list[str], env: dict[str, str]) -> int:
    """Run a command, pass signals on to it, and wait for its end."""
    try:
        child = subprocess.Popen(words, env=env)
    except OSError as error:
        print(f"jupyter affinode simulate: {words[0]}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return 127
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: _hand_on(child, received))
    status = child.wait()
    return status if status >= 0 else 128 - status


def _hand_on(child: subprocess.Popen[bytes], number: int) -> None:
    """Pass a signal on to the child; a Ctrl-C at the terminal has reached the child already."""
    if number != signal.SIGINT or not sys.stdin.isatty():
        child.send_signal(number)

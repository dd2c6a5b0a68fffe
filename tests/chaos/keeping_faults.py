"""What keeping.py injects, each as a function that makes it go wrong once; beside faults.py, which draws them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import faults as f
from keepers import keepers, supervisors
from kept_notebooks import ON_ITS_WAY

if TYPE_CHECKING:
    from keeping import Keeping

Inject = Callable[["Keeping", f.Fault], Awaitable[str]]
RESTS_S = 12.0  # at most, a tab that leaves its kernel alone


def of_server(how: signal.Signals) -> Inject:
    """End a server in a way; another takes its place."""

    async def inject(chaos: Keeping, fault: f.Fault) -> str:
        state = await chaos.aim(fault)
        site = chaos.site(fault)
        process = site.server.process
        assert process is not None
        chaos.note(f"server {how.name}", site)
        if site.is_changing:
            f.send(process.pid, how) if process.poll() is None and how == signal.SIGKILL else None
            return "its end or start"
        site.change = asyncio.create_task(site.replace(how, 4 * fault.amount**2))
        return state

    return inject


async def stop_server(chaos: Keeping, fault: f.Fault) -> str:
    """For up to six seconds."""
    state = await chaos.aim(fault)
    site = chaos.site(fault)
    process = site.server.process
    assert process is not None
    chaos.note("server SIGSTOP", site)
    return state if chaos.stop([process.pid] if process.poll() is None else [], 6 * fault.amount) else "none"


def of_keeper(how: signal.Signals) -> Inject:
    """End the keeper in a way."""

    async def inject(chaos: Keeping, fault: f.Fault) -> str:
        state = await chaos.aim(fault)
        chaos.note(f"keeper {how.name}")
        return state if chaos.send(keepers(chaos.machine), how) else "none"

    return inject


async def stop_keeper(chaos: Keeping, fault: f.Fault) -> str:
    """For up to six seconds."""
    state = await chaos.aim(fault)
    return state if chaos.stop(keepers(chaos.machine), 6 * fault.amount) else "none"


def of_supervisor(how: signal.Signals) -> Inject:
    """End what starts the keeper again; it passes requests to end on."""

    async def inject(chaos: Keeping, fault: f.Fault) -> str:
        state = await chaos.aim(fault)
        chaos.note(f"keeper's supervisor {how.name}")
        return state if chaos.send(supervisors(chaos.machine), how) else "none"

    return inject


async def kill_both(chaos: Keeping, fault: f.Fault) -> str:
    """The keeper, and first what would start it again."""
    state = await chaos.aim(fault)
    chaos.note("keeper SIGKILL")
    chaos.send(supervisors(chaos.machine), signal.SIGKILL)
    return state if chaos.send(keepers(chaos.machine), signal.SIGKILL) else "none"


def of_controller(how: signal.Signals) -> Inject:
    """End the controller in a way."""

    async def inject(chaos: Keeping, fault: f.Fault) -> str:
        state = await chaos.aim(fault)
        return state if chaos.send(chaos.controllers(), how) else "none"

    return inject


async def hibernate(chaos: Keeping, fault: f.Fault) -> str:
    """By the panel; its tab leaves it alone for a while, or does not."""
    notebook = chaos.notebook(fault)
    notebook.rests_until = time.monotonic() + RESTS_S * fault.amount
    where = notebook.where()
    chaos.ask(notebook, "hibernate")
    return where


async def hibernate_all(chaos: Keeping, fault: f.Fault) -> str:
    """By the panel, all at once; their tabs leave them alone for a while."""
    for notebook in chaos.notebooks:
        notebook.rests_until = time.monotonic() + RESTS_S * fault.amount
        chaos.ask(notebook, "hibernate")
    return "all"


async def hibernate_by_command(chaos: Keeping, fault: f.Fault) -> str:
    """By a command line, with or without a server."""
    notebook = chaos.notebook(fault)
    notebook.rests_until = time.monotonic() + RESTS_S * fault.amount
    where = notebook.where()
    chaos.command("hibernate", notebook.kernel_id)
    return where


async def wake_by_command(chaos: Keeping, fault: f.Fault) -> str:
    """By a command line, with or without a server."""
    notebook = chaos.notebook(fault)
    where = notebook.where()
    chaos.command("wake", notebook.kernel_id)
    return where


async def wake_by_message(chaos: Keeping, fault: f.Fault) -> str:
    """All tabs run cells again."""
    away = [notebook for notebook in chaos.notebooks if notebook.where() == "image"]
    for notebook in chaos.notebooks:
        notebook.rests_until = 0.0
    return f"{len(away)} in images"


async def stay(chaos: Keeping, fault: f.Fault) -> str:
    """Stop a kernel on its way, if one is."""
    moving = [notebook for notebook in chaos.notebooks if notebook.where() == ON_ITS_WAY]
    notebook = moving[fault.choice % len(moving)] if moving else chaos.notebook(fault)
    where = notebook.where()
    chaos.ask(notebook, "stay")
    return where


async def park(chaos: Keeping, fault: f.Fault) -> str:
    """By the panel."""
    notebook = chaos.notebook(fault)
    where = notebook.where()
    chaos.ask(notebook, "park")
    return where


async def fill_disk(chaos: Keeping, fault: f.Fault) -> str:
    """For up to four seconds, while a kernel hibernates; some MiB are left, so that some images are begun."""
    notebook = chaos.notebook(fault)
    where = notebook.where()
    chaos.ask(notebook, "hibernate")
    await asyncio.sleep(0.3 * fault.amount)
    chaos.fill_disk(int(32 * fault.amount) if fault.choice % 2 else 0)
    chaos.later(4 * fault.amount, chaos.empty_disk)
    return where


async def rename(chaos: Keeping, fault: f.Fault) -> str:
    """A notebook, of a kernel that is away if one is."""
    away = [notebook for notebook in chaos.notebooks if notebook.where() == "image"]
    notebook = away[fault.choice % len(away)] if away else chaos.notebook(fault)
    where = notebook.where()
    path = f"{notebook.path.partition('-')[0]}-{fault.choice}-{len(chaos.events)}.ipynb"

    async def ask() -> None:
        body = {"path": path, "name": path, "type": "notebook"}
        try:
            status, _ = await asyncio.to_thread(
                notebook.site.server.request, "PATCH", f"/api/sessions/{notebook.session_id}", body
            )
        except OSError:
            status = 0
        chaos.outcomes[f"rename: {status or 'no server'}"] += 1
        if status == 200:
            notebook.earlier_paths[notebook.path] = time.time()
            notebook.path = path

    chaos.beside(ask())
    return where


FULL_DISK = "fill the images' disk"

# How often each is drawn, beside the others.
KINDS: dict[str, tuple[int, Inject]] = {
    "kill a server": (8, of_server(signal.SIGKILL)),
    "end a server": (10, of_server(signal.SIGTERM)),
    "stop a server": (4, stop_server),
    "kill the keeper": (10, of_keeper(signal.SIGKILL)),
    "end the keeper": (4, of_keeper(signal.SIGTERM)),
    "stop the keeper": (4, stop_keeper),
    "kill the supervisor": (3, of_supervisor(signal.SIGKILL)),
    "end the supervisor": (3, of_supervisor(signal.SIGTERM)),
    "kill keeper and supervisor": (3, kill_both),
    "kill the controller": (4, of_controller(signal.SIGKILL)),
    "end the controller": (3, of_controller(signal.SIGTERM)),
    "hibernate": (20, hibernate),
    "hibernate all": (8, hibernate_all),
    "hibernate by command": (10, hibernate_by_command),
    "wake by message": (6, wake_by_message),
    "wake by command": (6, wake_by_command),
    "stay": (6, stay),
    "park": (6, park),
    "rename a notebook": (6, rename),
    FULL_DISK: (8, fill_disk),
}

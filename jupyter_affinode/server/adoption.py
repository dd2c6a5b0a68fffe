"""Jupyter's kernel manager takes a kernel that runs already, and gives one away that runs on.

It has no call for either. Nothing else of this package uses its insides for that.
"""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory
from jupyter_core.utils import ensure_async
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL

from ..keeping.client import Kept
from ..keeping.life_table import HAS_PROCESS
from ..keeping.processes import lives
from ..keeping.records import Record
from ..provisioning.provisioner import AffinodeProvisioner


class Adoption:
    """Puts kernels into a server's kernel manager, with their sessions, and takes them out."""

    def __init__(self, serverapp: Any, log: logging.Logger):
        """Do so for a server."""
        self._app = serverapp
        self._manager = serverapp.kernel_manager
        self._log = log
        self._given_away: list[Any] = []  # kernel managers, whose end would delete their connection files

    async def put_in(self, kept: Kept) -> Any:
        """Have the server know a kernel; return the kernel's own manager.

        Raises ProcessLookupError if it has ended, or cannot be taken, and NoSuchKernel.
        """
        record = kept.record
        manager = self._manager_of(record)
        await self._provision(manager, kept)
        self._restore_connection_file(manager, record.kernel_id)
        self._register(manager, kept)
        for session in record.sessions:
            await self._restore_session(session, record.kernel_id)
        return manager

    def take_out(self, kernel_id: str) -> None:
        """Have the server forget a kernel that runs on."""
        all_kernels = self._manager
        manager = all_kernels._kernels[kernel_id]
        manager.stop_restarter()
        all_kernels.stop_watching_activity(kernel_id)
        all_kernels.stop_buffering(kernel_id)
        manager._close_control_socket()
        all_kernels.remove_kernel(kernel_id)
        manager._connection_file_written = False
        self._given_away.append(manager)

    def _manager_of(self, record: Record) -> Any:
        all_kernels = self._manager
        manager = all_kernels.kernel_manager_factory(
            connection_file=record.connection_file,
            parent=all_kernels,
            log=all_kernels.log,
            kernel_name=record.kernel_name,
            kernel_spec_manager=all_kernels.kernel_spec_manager,
        )
        manager.kernel_id = record.kernel_id
        manager.load_connection_info(dict(record.connection))
        return manager

    async def _provision(self, manager: Any, kept: Kept) -> None:
        """Have a provisioner of ours stand for the process that runs, or for a kernel on disk."""
        record = kept.record
        manager.provisioner = KernelProvisionerFactory.instance(
            parent=self._manager
        ).create_provisioner_instance(record.kernel_id, manager.kernel_spec, parent=manager)
        if not isinstance(manager.provisioner, AffinodeProvisioner):
            raise ProcessLookupError("its kernelspec has another provisioner now")
        await manager.provisioner.load_provisioner_info(
            {
                "pid": record.process.pid,
                "pgid": record.process_group,
                "ip": record.connection["ip"],
                "managed": record.is_managed,
                "hibernated": kept.life not in HAS_PROCESS and not lives(record.process),
                "process": {**record.process.__dict__},
                "kernel_id": record.kernel_id,
                "connection_info": manager.get_connection_info(),
            }
        )
        manager._launch_args = {**record.launch, "env": {**os.environ, **record.environ}}
        manager._attempted_start = True
        if not manager.ready.done():
            manager.ready.set_result(None)

    def _restore_connection_file(self, manager: Any, kernel_id: str) -> None:
        if not os.path.exists(manager.connection_file):
            try:
                manager.write_connection_file()
            except OSError as error:  # other programs cannot connect to it; this server can
                self._log.warning("The connection file of kernel %s cannot be written: %s", kernel_id, error)
        manager._connection_file_written = True  # it goes when the kernel ends

    def _register(self, manager: Any, kept: Kept) -> None:
        """Do what the server's kernel manager does with a kernel that it has started."""
        all_kernels, kernel_id = self._manager, kept.record.kernel_id
        all_kernels._kernels[kernel_id] = manager
        all_kernels._kernel_connections[kernel_id] = 0
        all_kernels._kernel_ports[kernel_id] = manager.ports
        manager.execution_state = kept.state
        if kept.record.info is not None:
            manager._kernel_info_future = asyncio.get_running_loop().create_future()
            manager._kernel_info_future.set_result(kept.record.info)
        all_kernels.start_watching_activity(kernel_id)
        manager.last_activity = datetime.now(timezone.utc) - timedelta(seconds=kept.quiet_s)
        manager.start_restarter()
        all_kernels.add_restart_callback(
            kernel_id, partial(all_kernels._handle_kernel_died, kernel_id), "dead"
        )
        if not all_kernels._initialized_culler:
            all_kernels.initialize_culler()
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=manager.kernel_name).inc()

    async def _restore_session(self, session: dict[str, Any], kernel_id: str) -> None:
        sessions = self._app.session_manager
        try:
            await ensure_async(sessions.get_session(session_id=session["id"]))
        except Exception:  # 404: it is in memory, unless the server has a database
            await ensure_async(
                sessions.save_session(
                    session["id"],
                    path=session["path"],
                    name=session["name"],
                    type=session["type"],
                    kernel_id=kernel_id,
                )
            )

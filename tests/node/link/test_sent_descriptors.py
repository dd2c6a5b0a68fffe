"""File descriptors that the controller sends over a link."""

from __future__ import annotations

import array
import asyncio
import os
import socket

from open_files import open_files

from jupyter_affinode.node.identity.access import OwnUserAccess
from jupyter_affinode.node.identity.rate_limits import Accounts
from jupyter_affinode.node.link.connection import SEND_QUEUE, Connection, Ending
from jupyter_affinode.node.protocol.wire import CommandKind
from jupyter_affinode.node.system.accepting import Line
from jupyter_affinode.node.system.peers import Peer


class Listener:
    """No process."""

    def __getattr__(self, name):
        return lambda *_: None


def test_descriptors_reach_a_slow_reader_in_order_and_none_is_lost_or_left_open():
    """The controller may close its own right after the command: what waits has a copy."""

    async def body(ours, theirs):
        ending = []
        access = OwnUserAccess()
        connection = Connection(
            ours,
            access.recognise(ours, Peer(0, os.getuid())),
            Listener(),
            access=access,
            accounts=Accounts(access.limits),
            line=Line(Connection.read),
            heartbeat_s=1.0,
            controller_version="test",
            on_end=lambda *ended: ending.append(ended),
        )
        for number in range(SEND_QUEUE):
            file = os.memfd_create(f"sent-lot-{number}")
            os.write(file, str(number).encode())
            connection.command(CommandKind.LOT, request=number, descriptor=file)
            os.close(file)
        assert connection._unsent, "the socket's own buffer is smaller than that"
        for number in range(SEND_QUEUE):
            _, ancillary = await receive(theirs)
            (file,) = array.array("i", ancillary[0][2])
            assert os.pread(file, 10, 0) == str(number).encode()
            os.close(file)
        file = os.memfd_create("sent-lot-never-read")
        for number in range(SEND_QUEUE):
            connection.command(CommandKind.LOT, request=number, descriptor=file)
        os.close(file)
        connection.end(Ending.OURS, "the test is over")
        assert len(ending) == 1

    async def receive(connected):
        while True:
            try:
                data, ancillary, _, _ = connected.recvmsg(4096, socket.CMSG_SPACE(4))
                return data, ancillary
            except BlockingIOError:
                await asyncio.sleep(0.001)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)
    asyncio.run(body(ours, theirs))
    theirs.close()
    assert ours.fileno() == -1
    assert open_files("/memfd:sent-lot-") == 0

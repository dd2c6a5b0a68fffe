"""However many links of one user are full, other users' messages wait for a bounded number of that user's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from pathlib import Path

from fake_shim import MIB, STATE, FakePage, connect, hello, notify, send
from people import needs_root
from scene import ATTACKER, HONEST

from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.identity.rate_limits import MANY_USERS, Accounts
from jupyter_affinode.node.link.connection import MESSAGES_AT_ONCE
from jupyter_affinode.node.link.listener import Link
from jupyter_affinode.node.system.closing import Closing

LINKS, MESSAGES = 200, 20


class Counting:
    """A link's listener that counts the messages of each user, in all and in this turn of the loop."""

    def __init__(self):
        self.greeted = 0
        self.said, self.in_turn = Counter(), Counter()
        self.most_in_turn = 0
        self.heard_before_honest = None
        self.ended = asyncio.Event()

    def knows(self, owner, page):
        return False

    def shim_connected(self, connection, hello, page):
        self.greeted += 1
        page.close()

    def shim_said(self, connection, message):
        user = connection.peer.uid
        self.said[user] += 1
        self.in_turn[user] += 1
        self.most_in_turn = max(self.most_in_turn, self.in_turn[user])
        if user == HONEST:
            self.heard_before_honest = self.said[ATTACKER]
            self.ended.set()

    def shim_gone(self, connection, ending):
        pass

    async def count_turns(self):
        """Begin to count anew in each turn of the loop."""
        while True:
            self.in_turn.clear()
            await asyncio.sleep(0)


def connected_as(user: int, path: Path, page: FakePage, kernel_id: str):
    """A user's link that has said HELLO: Linux tells the listener the user that connected."""
    os.seteuid(user)
    try:
        link = connect(path)
    finally:
        os.seteuid(0)
    send(link, hello(kernel_id), page.descriptor)
    return link


async def flooded(folder: Path) -> Counting:
    """What was heard until the honest user's only message, with all of the attacker's links full before it."""
    listener = Counting()
    listening = Link(
        folder / "link.sock",
        listener,
        access=EveryUserAccess(),
        accounts=Accounts(MANY_USERS),
        closing=Closing(),
        version="0.1.0",
        log=logging.getLogger(__name__),
        heartbeat_s=600.0,
    )
    page = FakePage()
    with contextlib.ExitStack() as made:
        made.callback(listening.close)
        made.callback(page.close)
        links = []
        for number in range(LINKS + 1):
            user = ATTACKER if number < LINKS else HONEST
            links.append(
                made.enter_context(connected_as(user, folder / "link.sock", page, f"kernel-{number}"))
            )
            while listener.greeted <= number:
                await asyncio.sleep(0)
        for link in links[:LINKS]:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
            for _ in range(MESSAGES):
                link.send(notify(STATE))
        links[LINKS].send(notify(STATE))
        turns = asyncio.create_task(listener.count_turns())
        await asyncio.wait_for(listener.ended.wait(), 60)
        turns.cancel()
    return listener


def test_a_users_message_waits_for_one_batch_of_another_user_with_two_hundred_full_links(tmp_path):
    needs_root()
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    counted = asyncio.run(flooded(tmp_path))
    assert counted.most_in_turn <= MESSAGES_AT_ONCE
    assert counted.heard_before_honest <= 2 * MESSAGES_AT_ONCE

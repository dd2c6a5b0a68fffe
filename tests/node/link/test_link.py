"""A shim that breaks the link's rules is dropped with one log line, and all others are served on."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import fake_shim
import pytest
from fake_shim import MIB, FakePage, hello, message, notify, send
from live_machine import new_machine


@pytest.fixture(scope="module")
def served():
    """A controller with one good shim: (its machine, the shim)."""
    with new_machine() as machine:
        machine.start_controller("--settle=0.1", patient=True)
        good = fake_shim.FakeShim(machine.socket.parent, "good", resident=300 * MIB)
        yield machine, good
        good.close()


@pytest.fixture
def attacked(served, wait_until):
    """The controller; after each test it still serves the good shim."""
    machine, good = served
    yield machine
    beats = good.heard.heartbeats
    wait_until(lambda: good.heard.heartbeats > beats, message="the good shim still hears heartbeats")
    for action in ("park", "resume"):
        assert machine.ask("POST", f"/kernels/good/{action}", {})[0] == 200
    assert "a pass failed" not in machine.controller_log()
    assert "Traceback" not in machine.controller_log()


def drops(machine):
    return machine.socket.with_name("node.log").read_text().count(" dropped ")


def link(machine):
    return fake_shim.connect(machine.socket.with_name("link.sock"))


def is_hung_up(connected, timeout=60.0):
    """Whether the controller closes a connection, whatever it says before."""
    connected.settimeout(timeout)
    try:
        while connected.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


BAD_MESSAGES = {
    "message of 100 bytes": hello("bad")[:100],
    "of 232 bytes that says 192": hello("bad") + b"x" * 40,
    "too large": hello("bad") * 20,
    "magic": b"\xff" * 192,
    "a message that is no HELLO": notify(1),
    "without an end": hello("k" * 64),
    "of 192 bytes that says 16": hello("bad", size=16),
}
BAD_PAGES = {
    "not sealed (seals 0x0)": {"seals": 0},
    "not sealed (seals 0x6)": {"seals": fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW},
    "of 64 bytes": {"size": 64},
    "of 8192 bytes": {"size": 8192},
}


def test_a_bad_message_costs_the_peer_its_connection_and_one_log_line(attacked):
    page, before = FakePage(), drops(attacked)
    for number, (why, data) in enumerate(BAD_MESSAGES.items()):
        with link(attacked) as bad:
            send(bad, data, page.descriptor)
            assert is_hung_up(bad), why
        assert why in attacked.controller_log()
        assert drops(attacked) == before + number + 1
    page.close()


def test_a_bad_page_costs_the_peer_its_connection(attacked):
    for why, page in BAD_PAGES.items():
        fake = FakePage(**page)
        with link(attacked) as bad:
            send(bad, hello("bad"), fake.descriptor)
            assert is_hung_up(bad), why
        fake.close()
        assert why in attacked.controller_log()
        assert "bad" not in attacked.kernels()


def test_a_hello_needs_exactly_one_descriptor_and_none_leaks(attacked, wait_until):
    pid = attacked.controller_pid()

    def memory_files():
        """How many it has open; other descriptors come and go."""
        found = 0
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(path).startswith("/memfd:")
        return found

    before = memory_files()
    page = FakePage()
    for count in (0, 2, 8, 100):
        with link(attacked) as bad:
            send(bad, hello("bad"), *[page.descriptor] * count)
            assert is_hung_up(bad)
    page.close()
    # One of an earlier test may have been open still when they were counted.
    wait_until(lambda: memory_files() <= before, message="no descriptor is left behind")


def test_descriptors_with_another_message_are_refused(attacked):
    page = FakePage()
    with link(attacked) as bad:
        send(bad, hello("bad"), page.descriptor)
        assert bad.recv(4096)  # WELCOME
        try:
            send(bad, notify(1), page.descriptor)
        except PermissionError:  # this Linux refuses them at the controller's wish
            pass
        else:
            assert is_hung_up(bad)
    page.close()


def test_a_page_that_turns_to_nonsense_costs_the_process_its_connection(attacked, wait_until):
    page = FakePage()
    with link(attacked) as bad:
        send(bad, hello("bad"), page.descriptor)
        wait_until(lambda: "bad" in attacked.kernels())
        page.write(state=99)
        assert is_hung_up(bad)
    page.close()
    assert "state 99" in attacked.controller_log()


def test_a_connection_without_hello_is_dropped(attacked):
    with link(attacked) as quiet:
        assert is_hung_up(quiet)
    assert "no HELLO" in attacked.controller_log()


def test_a_shim_that_does_not_read_is_dropped_and_delays_no_other(attacked):
    page = FakePage()
    with link(attacked) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        send(deaf, hello("deaf"), page.descriptor)
        with pytest.raises(OSError):
            for asked in itertools.count():
                deaf.send(fake_shim.request(5, asked))
    page.close()
    assert "has not read" in attacked.controller_log()


@pytest.mark.long
def test_a_flood_is_read_slowly_while_other_shims_are_served(attacked):
    page = FakePage()
    with link(attacked) as loud:
        send(loud, hello("loud"), page.descriptor)
        loud.setblocking(False)
        since, sent = time.monotonic(), 0
        while time.monotonic() < since + 2:
            for _ in range(200):
                try:
                    loud.send(notify(1))
                    sent += 1
                except BlockingIOError:
                    break
            assert attacked.node() is not None
        assert sent < 2500 * (time.monotonic() - since)
    page.close()


def test_another_users_process_is_dropped(attacked):
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = attacked.socket.parent
    folder.chmod(0o755)
    for name in ("link.sock", "node.sock"):
        (folder / name).chmod(0o666)
    attacked.folder.chmod(0o755)
    program = textwrap.dedent(
        """
        import os, socket, sys
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        kind = socket.SOCK_SEQPACKET if "link" in sys.argv[1] else socket.SOCK_STREAM
        peer = socket.socket(socket.AF_UNIX, kind)
        peer.connect(sys.argv[1])
        peer.settimeout(60)
        try:
            peer.send(b"GET /api/v1/node HTTP/1.1\\r\\n\\r\\n")
            print(len(peer.recv(10)))
        except (BrokenPipeError, ConnectionResetError):
            print(0)
        """
    )
    for name in ("link.sock", "node.sock"):
        other_user = subprocess.run(
            [sys.executable, "-c", program, str(folder / name)], capture_output=True, text=True, check=True
        )
        assert other_user.stdout.strip() == "0"
    assert attacked.controller_log().count("it belongs to user 65534") >= 2
    folder.chmod(0o700)


def test_random_mutations_of_valid_messages_never_stop_the_controller(attacked):
    """The seed is printed, so that a failure can be had again."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    page = FakePage()
    valid = [
        notify(fake_shim.ROOM, 1 << 30, number=3),
        notify(fake_shim.ROOM_END, number=3),
        notify(fake_shim.WANT),
        notify(fake_shim.STATE),
        fake_shim.reply(1, 1, 0, 1 << 20, "done"),
        fake_shim.reply(2, 2, 3, 1 << 20, "full"),
        fake_shim.request(1, 1),
        fake_shim.request(3, 2, 10**9),
        message(fake_shim.HEARTBEAT, b""),
    ]
    for round_ in range(150):
        with link(attacked) as peer:
            greeting = bytearray(hello(f"fuzz-{round_ % 7}"))
            if chance.random() < 0.3:
                greeting[chance.randrange(len(greeting))] = chance.randrange(256)
            try:
                send(peer, bytes(greeting), *[page.descriptor] * chance.choice([1, 1, 1, 1, 0, 2]))
                for _ in range(chance.randrange(12)):
                    data = bytearray(chance.choice(valid))
                    for _ in range(chance.choice([0, 0, 1, 1, 2, 8])):
                        data[chance.randrange(len(data))] = chance.randrange(256)
                    if chance.random() < 0.1:
                        data = data[: chance.randrange(len(data) + 1)]
                    peer.send(bytes(data))
                    if chance.random() < 0.3:
                        page.state = chance.randrange(7)
                        page.memory[fake_shim.GPU] = [chance.randrange(1 << 40) for _ in range(3)]
                        page.write(gpu_count=chance.choice([0, 1, 1, 1, 8, 9]))
            except OSError:
                pass
        page.state = fake_shim.RESIDENT
        page.write()
    page.close()
    assert attacked.node() is not None


def test_a_stopped_process_loses_its_place_but_keeps_its_memory(controller, stoppable, wait_until):
    """SIGSTOP ends its heartbeats; what it has stays charged, and it is welcome again afterwards."""
    process = stoppable("stoppable")
    os.kill(process.pid, 19)
    wait_until(lambda: not controller.kernel("stoppable")["tracked"])
    stopped = controller.kernel("stoppable")
    assert stopped["residency"] == "resident"
    assert stopped["resident_bytes"] == 100 * MIB
    assert stopped["processes"][0]["parkable"] is False
    os.kill(process.pid, 18)
    wait_until(lambda: controller.kernel("stoppable")["tracked"], message="it said HELLO again")
    assert len(controller.kernel("stoppable")["processes"]) == 1
    process.kill()
    wait_until(lambda: controller.kernel("stoppable")["processes"] == [], message="its end is noticed")

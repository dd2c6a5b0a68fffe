"""The wire's structs are those of protocol.h, and nothing a peer sends gets past the parser or out of it."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import fake_shim
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_affinode.node.protocol import page, wire

PROTOCOL = Path(__file__).resolve().parents[3] / "shim" / "src"
SIZES = {
    "affinode_header": wire.HEADER.size,
    "affinode_hello": wire.HEADER.size + wire.HELLO.size,
    "affinode_notify": wire.HEADER.size + wire.NOTIFY.size,
    "affinode_command": wire.HEADER.size + wire.COMMAND.size,
    "affinode_reply": wire.HEADER.size + wire.REPLY.size,
    "affinode_request": wire.HEADER.size + wire.REQUEST.size,
    "affinode_grant": wire.HEADER.size + wire.GRANT.size,
    "affinode_welcome": wire.HEADER.size + wire.WELCOME.size,
    "affinode_notice": wire.HEADER.size + wire.NOTICE.size,
    "affinode_result": wire.HEADER.size + wire.RESULT.size,
    "affinode_heartbeat": wire.HEADER.size,
    "affinode_page_gpu": page.GPU.size,
}
OFFSETS = {
    "affinode_hello.kernel_id": 32,
    "affinode_notify.bytes": 24,
    "affinode_notify.gpu_uuid": 32,
    "affinode_command.deadline_ns": 24,
    "affinode_command.reason": 40,
    "affinode_reply.duration_ns": 32,
    "affinode_reply.text": 40,
    "affinode_request.argument": 24,
    "affinode_notice.text": 24,
    "affinode_result.text": 24,
    "affinode_page.sequence": page.SEQUENCE_OFFSET,
    "affinode_page.gpu_count": page.HEAD.size - 4,
    "affinode_page.calls": page.HEAD.size + 8,
    "affinode_page.parks": page.HEAD.size + 72,
    "affinode_page.copy_bytes": page.HEAD.size + 120,
    "affinode_page.retained_bytes": page.HEAD.size + 128,
    "affinode_page.last_park_copied_bytes": page.HEAD.size + 136,
    "affinode_page.last_park_zero_bytes": page.HEAD.size + 144,
    "affinode_page.mended_chunks": page.HEAD.size + 152,
    "affinode_page.depth": page.HEAD.size + 160,
    "affinode_page.lot_bytes": page.HEAD.size + 168,
    "affinode_page.context_bytes": page.HEAD.size + 176,
    "affinode_page.gpus": page.HEAD.size + page.TAIL.size,
    "affinode_page.disk_bytes": page.DISK_OFFSET,
    "affinode_page.last_resume_disk_bytes": page.DISK_OFFSET + 16,
    "affinode_page.counted_since_ns": page.COUNTED_OFFSET,
}
CONSTANTS = {
    "AFFINODE_LINK_MAGIC": wire.LINK_MAGIC,
    "AFFINODE_PAGE_MAGIC": page.PAGE_MAGIC,
    "AFFINODE_PROTOCOL_VERSION": wire.PROTOCOL_VERSION,
    "AFFINODE_PAGE_SIZE": page.PAGE_SIZE,
    "AFFINODE_MAX_GPUS": page.MAX_GPUS,
    "AFFINODE_KERNEL_ID_SIZE": wire.KERNEL_ID_BYTES,
    "AFFINODE_TEXT_SIZE": wire.TEXT_BYTES,
    "AFFINODE_GRANT_SIZE": wire.GRANT_BYTES,
    "AFFINODE_GRANT_PIECE": wire.GRANT_PIECE_BYTES,
    "AFFINODE_UNMOVABLE_REASONS": len(page.UnmovableReason),
    "AFFINODE_MOVE_BUDGET_SHIFT": wire.MOVE_BUDGET_SHIFT,
    "AFFINODE_PREPARED_MS": wire.PREPARED_MS,
    "AFFINODE_STREAM_MS": wire.STREAM_MS,
    "AFFINODE_WINDOW_BYTES": wire.WINDOW_BYTES,
    "AFFINODE_PREPARED_CALL_MS": wire.PREPARED_CALL_MS,
    **{f"AFFINODE_{kind.name}": kind for kind in wire.MessageType},
    **{f"AFFINODE_NOTIFY_{kind.name}": kind for kind in wire.NotifyKind},
    **{f"AFFINODE_COMMAND_{kind.name}": kind for kind in wire.CommandKind},
    **{f"AFFINODE_{status.name}": status for status in wire.Status},
    **{f"AFFINODE_REQUEST_{kind.name}": kind for kind in wire.RequestKind},
    **{f"AFFINODE_HELLO_{flag.name}": flag for flag in wire.HelloFlag},
    **{f"AFFINODE_STATE_{state.name}": state for state in page.State},
    **{f"AFFINODE_UNMOVABLE_{reason.name}": reason for reason in page.UnmovableReason},
    **{f"AFFINODE_PAGE_{flag.name}": flag for flag in page.PageFlag},
    **{f"AFFINODE_MOVE_{flag.name}": flag for flag in wire.MoveFlag},
    **{f"AFFINODE_DEPTH_{depth.name}": depth for depth in page.Depth},
}


def test_every_struct_and_constant_is_that_of_the_c_header(tmp_path):
    checks = [f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");' for name, size in SIZES.items()]
    for place, offset in OFFSETS.items():
        struct, _, member = place.partition(".")
        checks.append(f'_Static_assert(offsetof(struct {struct}, {member}) == {offset}, "{place}");')
    checks += [f'_Static_assert({name} == {int(value)}u, "{name}");' for name, value in CONSTANTS.items()]
    source = tmp_path / "check.c"
    source.write_text("\n".join(["#include <stddef.h>", '#include "protocol.h"', *checks]))
    compiled = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", f"-I{PROTOCOL}", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr


def test_messages_are_read_as_they_were_sent():
    assert wire.parse(fake_shim.hello("k1", flags=16)) == wire.Hello(
        2, fake_shim.os.getpid(), wire.HelloFlag.CONTEXT, "k1", "fake", "0.1.0"
    )
    assert wire.parse(fake_shim.notify(fake_shim.ROOM, 12345, number=7)) == wire.Notify(
        7, wire.NotifyKind.ROOM, 12345, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    )
    assert wire.parse(fake_shim.reply(1, 9, fake_shim.BUSY, 5, "at work")) == wire.Reply(
        9, wire.CommandKind.PARK, wire.Status.BUSY, 5, 0.001, "at work"
    )
    assert wire.parse(fake_shim.request(3, 4, 10**9)) == wire.Request(4, wire.RequestKind.HOLD, 10**9)
    assert wire.parse(fake_shim.message(fake_shim.HEARTBEAT, b"")) == wire.Heartbeat()


def test_a_hello_of_any_version_is_read():
    for version in (0, 1, 3, 99):
        hello = wire.parse(fake_shim.hello("k1", version=version))
        assert isinstance(hello, wire.Hello)
        assert (hello.version, hello.kernel_id, hello.shim_version) == (version, "k1", "0.1.0")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        fake_shim.hello("k")[:-1],
        fake_shim.hello("k") + b"\0",
        fake_shim.hello("k", size=16),
        fake_shim.message(fake_shim.HEARTBEAT, b"", version=1),
        fake_shim.message(fake_shim.HEARTBEAT, b"", version=3),
        fake_shim.message(0x33, b"anything"),
        fake_shim.notify(99),
        b"\0" * 192,
        fake_shim.hello("k" * 64),  # no room for its end
        fake_shim.notify(fake_shim.ROOM, 1 << 60),
        fake_shim.reply(77, 1, 0),
        fake_shim.reply(1, 1, -5),
        fake_shim.request(77, 1),
    ],
)
def test_what_breaks_the_protocol_is_refused_with_a_reason(data):
    with pytest.raises(wire.WireError) as error:
        wire.parse(data)
    assert str(error.value)


def test_text_is_cut_at_a_whole_character_and_ended():
    packed = wire.pack_notice(2, 3, "ü" * 200)
    text = packed[wire.HEADER.size + 8 :]
    assert len(text) == wire.TEXT_BYTES
    assert text.rstrip(b"\0").decode() == "ü" * 95


def test_names_from_a_peer_cannot_forge_log_lines():
    hello = wire.parse(fake_shim.hello("a\nb\x1b[31m"))
    assert isinstance(hello, wire.Hello)
    assert hello.kernel_id.isprintable()


VALID = [
    fake_shim.hello("kernel"),
    fake_shim.notify(fake_shim.ROOM, 1 << 30, number=3),
    fake_shim.reply(2, 1, 0, 1 << 30, "words"),
    fake_shim.request(1, 1),
    fake_shim.message(fake_shim.HEARTBEAT, b""),
]


@given(st.binary(max_size=300))
@example(VALID[0])
def test_any_bytes_parse_or_are_refused(data):
    with contextlib.suppress(wire.WireError):
        wire.parse(data)


@given(st.sampled_from(VALID), st.lists(st.tuples(st.integers(0, 231), st.integers(0, 255)), max_size=8))
def test_any_mutation_of_a_message_parses_or_is_refused(data, changes):
    mutated = bytearray(data)
    for place, value in changes:
        if place < len(mutated):
            mutated[place] = value
    with contextlib.suppress(wire.WireError):
        wire.parse(bytes(mutated))

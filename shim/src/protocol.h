/* Wire structs of the link and layout of the page, shared by the shim and (as `struct` formats in
 * jupyter_affinode/node/protocol/wire.py) by the node controller.
 *
 * Link: a Unix SOCK_SEQPACKET socket named `link.sock` in the folder of the controller's API socket; one message a
 * packet, native little-endian, natural alignment, fixed sizes. A receiver drops the peer (one log line) on a bad
 * magic, a size that does not match its type, or another version than its own.
 *
 * A kernel may outlive an upgrade of the package, and then speaks another version than the controller. That refuses it, shows
 * the kernel as one that is not managed until it is restarted, and the kernel goes on without a controller. For this HELLO and
 * GRANT are the same in every version; only the meaning of HELLO's other flags may change.
 *
 * Page: a memfd of AFFINODE_PAGE_SIZE bytes, sealed against shrinking, growing and further seals, passed with HELLO by
 * SCM_RIGHTS. Written by the shim alone, mapped read-only by the controller, which verifies seals and size first.
 * `sequence` is a seqlock: odd while the shim writes.
 *
 * All times are CLOCK_MONOTONIC nanoseconds as the shim's process has them, deadlines of commands too. The controller's clock may
 * be another (time namespaces, a process restored from a checkpoint): it learns the difference from the page's `heartbeat_ns`, which
 * is the moment of HELLO in the page that comes with it, and may change while the process lives.  */
#pragma once

#include <stdint.h>

#define AFFINODE_LINK_MAGIC 0x4e464641u /* "AFFN" */
#define AFFINODE_PAGE_MAGIC 0x47504641u /* "AFPG" */
#define AFFINODE_PROTOCOL_VERSION 2u /* changed with anything in this file, but for HELLO and GRANT */
#define AFFINODE_PAGE_SIZE 4096u
#define AFFINODE_MAX_GPUS 8u
#define AFFINODE_KERNEL_ID_SIZE 64u
#define AFFINODE_TEXT_SIZE 192u

/* Where a process's GPU state is; the word in the page is the truth. */
enum affinode_state {
	AFFINODE_STATE_NONE = 0,     /* no CUDA yet */
	AFFINODE_STATE_RESIDENT = 1,
	AFFINODE_STATE_PARKING = 2,
	AFFINODE_STATE_PARKED = 3,
	AFFINODE_STATE_QUEUED = 4,   /* parked, and a call waits for the GPU */
	AFFINODE_STATE_RESUMING = 5,
	AFFINODE_STATE_LOST = 6,
};

enum affinode_message {
	/* shim to controller */
	AFFINODE_HELLO = 0x01,
	AFFINODE_NOTIFY = 0x02,
	AFFINODE_REPLY = 0x03,
	AFFINODE_REQUEST = 0x04,
	AFFINODE_GRANT = 0x05,
	/* controller to shim */
	AFFINODE_WELCOME = 0x81,
	AFFINODE_COMMAND = 0x82,
	AFFINODE_NOTICE = 0x83,
	AFFINODE_RESULT = 0x84,
	/* either way */
	AFFINODE_HEARTBEAT = 0x40,
};

struct affinode_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t size;  /* of the whole message, header included */
	uint32_t epoch; /* commands: rising per connection; replies: the command's; requests: the request's number */
};

enum affinode_hello_flags {
	AFFINODE_HELLO_CONTEXT = 1u << 4,    /* the process may be parked at context depth, as its user or the administrator asked */
	AFFINODE_HELLO_GRANT = 1u << 5,      /* in every version: a GRANT follows, and names the user */
	AFFINODE_HELLO_MIGRATES = 1u << 7,   /* the process can carry out MOVE_MIGRATE, as far as it knows */
};

struct affinode_hello {
	struct affinode_header header;
	int32_t pid; /* as the shim sees it; informative, never trusted */
	uint32_t flags;
	uint32_t reserved;
	/* As the shim sees it. The controller tells of interrupts, and of the kernel's end, the processes of the group that is
	 * signalled, and no others. 0: not known (a group of an outer pid namespace).  */
	uint32_t process_group;
	char kernel_id[AFFINODE_KERNEL_ID_SIZE]; /* AFFINODE_KERNEL_ID, NUL-terminated; "" if unknown */
	char command[64];                        /* comm of the process */
	char shim_version[32];
};

/* A signed text of `size` bytes that names the process's user, for where the user id says nothing (between containers). The shim
 * reads it anew for each connection and passes it on as it is, right after HELLO, in pieces, in order; the WELCOME waits for the
 * last. A process that was let in before, by its page, is let in again with a grant that has expired.  */
#define AFFINODE_GRANT_SIZE 4096u
#define AFFINODE_GRANT_PIECE 192u

struct affinode_grant {
	struct affinode_header header;
	uint32_t offset, size; /* where in the text the piece begins; of the whole text */
	char piece[AFFINODE_GRANT_PIECE]; /* zeros after the end */
};

enum affinode_notice_kind {
	AFFINODE_NOTIFY_STATE = 1,     /* the page's state changed */
	AFFINODE_NOTIFY_WANT = 2,      /* a call waits at the closed gate (parked, or a prepared park) */
	AFFINODE_NOTIFY_UNWANT = 3,    /* no call waits any more (cancelled) */
	AFFINODE_NOTIFY_ROOM = 4,      /* an allocation of `bytes` met a full GPU; epoch = request number */
	AFFINODE_NOTIFY_ROOM_END = 5,  /* that request was given up or served; epoch = request number */
	AFFINODE_NOTIFY_LOT_END = 6,   /* the process has nothing in a lot any more; epoch = its number */
};

enum affinode_notify_flags {
	/* ROOM: the memory is there, but another process that comes back has the GPU's lock, and needs it, perhaps. It may be stopped.  */
	AFFINODE_NOTIFY_LOCKED = 1 << 0,
};

struct affinode_notify {
	struct affinode_header header;
	uint32_t kind;
	uint32_t flags;
	uint64_t bytes;
	uint8_t gpu_uuid[16];
};

enum affinode_command_kind {
	AFFINODE_COMMAND_PARK = 1,
	AFFINODE_COMMAND_RESUME = 2,
	AFFINODE_COMMAND_CANCEL = 3,       /* waiting calls fail, and go on failing for `argument` ns (5 s at most) */
	AFFINODE_COMMAND_CANCEL_END = 4,   /* the cell ended: calls may wait again */
	AFFINODE_COMMAND_DYING = 5,        /* the process is about to be shut down */
	AFFINODE_COMMAND_ROOM = 6,         /* answers NOTIFY_ROOM number `request`; argument 1: try again, 0: there will be no room */
	AFFINODE_COMMAND_COMMIT = 7,       /* carry out the prepared move whose epoch is `request` */
	AFFINODE_COMMAND_ABORT = 8,        /* undo it */
	/* Give back retained copies, down to `argument` bytes, and send NOTIFY_STATE when that is done.  */
	AFFINODE_COMMAND_TRIM = 9,
	/* Take a lot: `argument` bytes (a multiple of 32 MiB) of touched, zeroed host memory for copies, in the one
	 * memfd that comes with the message. Its pages are huge where fstat's st_blksize says so. The shim maps it shared, with
	 * MADV_DONTFORK, closes the descriptor, and gives lots back that a park left empty. `request` is the lot's number, good on this
	 * connection only: after another WELCOME the shim still uses the lot, and tells nothing of its end.
	 *
	 * The controller must not truncate a lot that it sent, nor make holes in it, before NOTIFY_LOT_END of its number on the same
	 * connection, or the end of the process: a cut under a mapping is a SIGBUS in the user's kernel, and the lot may have all that is
	 * left of the GPU's memory. Silence, a lost link, another WELCOME or the end of the controller do not allow it.
	 *
	 * After LOT_END the lot stays mapped and registered, untouched, until a LOT with the same memfd lends it again (so lots go to and
	 * fro between one user's processes, and nothing is touched or registered anew), or until LOT_FORGET, another WELCOME or the end
	 * of the link.  */
	AFFINODE_COMMAND_LOT = 10,
	/* Ask the frameworks in this process to drop what they only cache on the GPU, unless a cell runs. Answered. */
	AFFINODE_COMMAND_DROP_CACHES = 11,
	/* A parked process writes contents to a file in the folder that is the command's `reason`, and gives their host memory back,
	 * `argument` bytes at most. It ends early with REVOKED when another call waits for the GPU, or at ABORT, and with FAILED and the
	 * reason in words where the disk or the folder does not allow it. What is not on the disk by then stays in host memory. A resident
	 * process forgets its retained copy on the disk. The reply has the bytes that were written or forgotten.  */
	AFFINODE_COMMAND_SPILL = 12,
	/* Count calls by entry point for `argument` ns from now, 60 s at most. Sent again it counts for longer; 0 ends it. */
	AFFINODE_COMMAND_COUNT = 13,
	/* Unmap the lot whose memfd comes with the message, if it was given back; else do nothing. Its pages are free once all
	 * processes that have it mapped have done so.  */
	AFFINODE_COMMAND_LOT_FORGET = 14,
	/* A process that is parked at memory depth reads contents from the disk into host memory, `argument` bytes at most, in whole
	 * slabs of 32 MiB. It ends early with REVOKED at ABORT, and with NO_HOST_ROOM or FAILED where memory or the disk does not allow more.
	 * What is not in host memory by then stays on the disk. The reply has the bytes that were read.  */
	AFFINODE_COMMAND_READ_BACK = 15,
	/* The process is to become an image on disk. Parked: its context leaves the GPU too, all contents are written to the file
	 * `gpu-PID` in the folder that is the command's `reason`, which is the process's own from then on, and their host memory
	 * and all lots are given back. No CUDA yet: nothing is to be done. Answered like SPILL. After OK the controller
	 * hangs up, and the process comes back when the file `away` in that folder is gone, or after AFFINODE_AWAY_MS in which it ran.  */
	AFFINODE_COMMAND_HIBERNATE = 16,
	/* A parked process has contents that another process of its user has, or offers, in packs below the folder that is the command's `reason`,
	 * which is in host memory, and gives its own host memory for them back. It offers the rest. The packs are in the user's own folder there,
	 * `affinode-UID-NUMBER`, with the `argument` as 16 hexadecimal digits: the same for all of a user's processes, and known to no other user
	 * before the folder is made. It ends early with REVOKED as SPILL does, with BUSY while another process of the user does the same, with REFUSED
	 * where that name is taken, and with FAILED and the reason in words where the folder does not allow it. What is not in packs by then stays as
	 * it was. The reply has the bytes that others may find now and could not before.  */
	AFFINODE_COMMAND_SHARE = 17,
};
#define AFFINODE_AWAY_MS 600000u

/* Flags in the low 8 bits of the `argument` of PARK and RESUME. */
enum affinode_move_flags {
	AFFINODE_MOVE_PREPARE = 1u << 0, /* in two steps, see below */
	AFFINODE_MOVE_CONTEXT = 1u << 1, /* PARK: at context depth */
	/* PARK although the process is at work; with no other flag, but with a budget. New calls wait, and what was submitted is
	 * finished; then no call is let through until the process is resumed. BUSY if work or calls under way do not end
	 * within seconds, or a capture is open: then everything goes on as before. */
	AFFINODE_MOVE_PREEMPT = 1u << 2,
	/* RESUME a process that is parked at context depth and uses one GPU on the GPU whose UUID, as NVML prints it, is the
	 * command's `reason`; never together with MOVE_PREPARE. The page names that GPU from then on. After REFUSED nothing has
	 * changed, and a RESUME without the flag goes to the GPU that the page names. After NO_GPU_ROOM the same holds, but for one
	 * case that the page shows: the context had arrived when a process without a shim took the memory that was seen to be
	 * free. Then the process is parked at memory depth on the new GPU.  */
	AFFINODE_MOVE_MIGRATE = 1u << 3,
	/* Move part after part, so that two processes change places while copies go both ways; see Exchanges below. Never
	 * together with MOVE_CONTEXT, _PREEMPT or _MIGRATE; in a RESUME never with MOVE_PREPARE.  */
	AFFINODE_MOVE_STREAM = 1u << 4,
	/* Only with MOVE_STREAM: host memory goes from the process that resumes to the one that parks while both move, so that the
	 * exchange needs host memory for one of them and a little more; see Exchanges below.  */
	AFFINODE_MOVE_HAND_OVER = 1u << 5,
};

/* In PARK the bits above the flags are the MiB of host memory that it may take at most, beside lots and retained copies; 0: no
 * limit. A park that needs more ends with NO_HOST_ROOM, before anything is copied if that is known by then. */
#define AFFINODE_MOVE_BUDGET_SHIFT 8u

/* Prepared moves: the processes of one kernel move together.
 *
 * PARK or RESUME with MOVE_PREPARE is answered twice with the same epoch: by PREPARED when nothing can keep the move
 * from being done and nothing is given up yet, then by how it ended. If it cannot be prepared, the one reply says why.
 * While a move waits, `state` is PARKING or RESUMING.
 *
 * PREPARED, of a park: everything is copied out, the gate is closed, and nothing has changed since; to unmap and
 * release is left. Of a resume: all the room that it needs on the GPU is its own (everything is created and mapped); to
 * copy in, verify and open is left, so that a process need not wait for its peers' copies.
 *
 * COMMIT (`request`: the move's epoch) carries it out. ABORT undoes it, reply REVOKED: resident, or parked, as before.
 * ABORT may come before PREPARED too, even before the move is begun: the move then ends as soon as it can, the way any
 * revoked one does. A COMMIT before PREPARED, and either of them for another epoch than that of the move under way, are
 * ignored. Neither is answered itself, has a deadline, or changes the page's `epoch`.
 *
 * If neither comes:
 * - A prepared park waits as long as the link is up: while no call comes, a closed gate costs nothing, and a peer may
 *   have tens of GiB to copy. A call that waits at the gate (or a free that cannot be put off) is told by NOTIFY_WANT
 *   at once, and the controller aborts. AFFINODE_PREPARED_CALL_MS after such a call came, or at once when the process
 *   is dying or the link is lost, the park is undone (REVOKED).
 * - A prepared resume is carried out (OK) after AFFINODE_PREPARED_MS, or at once when the link is lost. What was
 *   received before the link was lost counts. Peers may then disagree; the controller, or the next one, brings back
 *   those that are parked.  */
#define AFFINODE_PREPARED_MS 10000u
#define AFFINODE_PREPARED_CALL_MS 100u

/* Exchanges: one process's memory goes out while another's comes in (MOVE_STREAM).
 *
 * PARK, also with MOVE_PREPARE: PREPARED when the gate is closed on an idle GPU, all is digested, and there is host memory
 * for what is to be copied, of which nothing is copied yet. From COMMIT on (without MOVE_PREPARE, from that moment on) each part's
 * physical memory is released as soon as it is copied and looked at once more. Nothing revokes it then: calls wait at the
 * gate. When it ends otherwise than with OK, `state` says where the process is: RESIDENT, or PARKED with the bytes that the page
 * calls resident still on the GPU, contents and all; a RESUME brings the others back. So may a PARK without flags, which
 * copies its last part beside the release of the others.
 *
 * RESUME: takes the room as it comes, without a look whether there is enough of it, and waits where there is none:
 * AFFINODE_STREAM_MS at most since it last got some, then NO_GPU_ROOM; it ends at once with REVOKED at ABORT, whose `request` is its epoch. Either
 * way it is parked as before. A lost link changes nothing.
 *
 * With MOVE_HAND_OVER host memory is lent, not reserved.
 *
 * PARK: PREPARED with host memory for all that is to be copied, or for AFFINODE_WINDOW_BYTES of it at least, or for the largest part of
 * a block (NO_HOST_ROOM otherwise). What it may take itself is the budget as ever; `bytes` says what it lacks beside. After COMMIT it uses the LOTs that come, and waits
 * where there is none: AFFINODE_STREAM_MS at most since it last got some, then NO_HOST_ROOM. `state` says where it is, as above.
 *
 * RESUME: a window (AFFINODE_WINDOW_BYTES at most, or a larger part) that is filled and has the right digests has its place on the GPU for good, and the host memory of its contents
 * is given back at once: LOT_END comes while the move goes on. What ends it early leaves it PARKED in part: the page calls those
 * bytes resident, and the host has the others. Nothing is retained.
 *
 * PARK with MOVE_STREAM of a process that is PARKED or QUEUED with bytes on the GPU parks the rest, behind the gate that is closed
 * already: calls that wait do not revoke it. Whatever becomes of it, `state` is PARKED, or QUEUED.  */
#define AFFINODE_STREAM_MS 2000u
#define AFFINODE_WINDOW_BYTES (256ull << 20)

struct affinode_command {
	struct affinode_header header;
	uint32_t command;
	uint32_t request;     /* ROOM: the number that it answers; COMMIT, ABORT: the epoch of the move, SPILL, READ_BACK or SHARE */
	uint64_t deadline_ns; /* the command is not begun after this; 0: none */
	uint64_t argument;
	char reason[AFFINODE_TEXT_SIZE]; /* for the log; with MOVE_MIGRATE, the GPU's UUID; with SPILL, HIBERNATE and SHARE, the folder */
};

enum affinode_status {
	AFFINODE_OK = 0,
	AFFINODE_BUSY = 1,        /* work runs on the GPU, a call does not come back, a capture is open */
	AFFINODE_REVOKED = 2,     /* a call came while parking: everything is where it was */
	AFFINODE_NO_GPU_ROOM = 3, /* resume: the GPU is full; still parked, contents kept */
	AFFINODE_NO_HOST_ROOM = 4,/* park: host memory is short; still resident */
	AFFINODE_STALE = 5,       /* deadline or epoch passed: nothing done */
	AFFINODE_NOTHING = 6,     /* nothing to move, or already there */
	AFFINODE_FAILED = 7,      /* the driver refused; text says what; contents kept */
	AFFINODE_REFUSED = 8,     /* the controller's answer to a request it will not serve */
	AFFINODE_PREPARED = 9,    /* not the end: the move waits for COMMIT or ABORT */
};

/* Answers a COMMAND (PARK and RESUME, once, or twice when prepared; DROP_CACHES; SPILL; READ_BACK; HIBERNATE; SHARE; the others are not answered).
 * `bytes`: what was moved or dropped; with NO_HOST_ROOM, the host memory that the park would have taken in all, its
 * kept memory and lots included, as far as it is known (0: not at all). */
struct affinode_reply {
	struct affinode_header header; /* epoch: the command's */
	uint32_t command;
	int32_t status;
	uint64_t bytes;
	uint64_t duration_ns;
	char text[AFFINODE_TEXT_SIZE];
};

enum affinode_request_kind {
	AFFINODE_REQUEST_PARK = 1,
	AFFINODE_REQUEST_RESUME = 2,
	AFFINODE_REQUEST_HOLD = 3, /* argument: ns, 0 for the controller's default */
	AFFINODE_REQUEST_RELEASE = 4,
	AFFINODE_REQUEST_STATUS = 5, /* the RESULT's text is the kernel's state in plain words */
};

/* What the user asks from inside the kernel (magics); answered by RESULT when it is done or refused. */
struct affinode_request {
	struct affinode_header header; /* epoch: the request's number */
	uint32_t kind;
	uint32_t reserved;
	uint64_t argument;
};

struct affinode_welcome {
	struct affinode_header header;
	uint32_t heartbeat_ms; /* both sides send a HEARTBEAT this often; three missed: the peer is gone */
	uint32_t reserved;
	char controller_version[32];
};

/* For the user: the kernel's state, and what it waits for while it has a place; sent when it changes. */
struct affinode_notice {
	struct affinode_header header;
	uint32_t place;   /* in the queue, from 1; 0: not queued */
	uint32_t waiting; /* how many wait */
	char text[AFFINODE_TEXT_SIZE];
};

struct affinode_result {
	struct affinode_header header; /* epoch: the request's */
	int32_t status;
	uint32_t reserved;
	char text[AFFINODE_TEXT_SIZE];
};

struct affinode_heartbeat {
	struct affinode_header header;
};

/* Why bytes stay on the GPU when the rest is parked. */
enum affinode_unmovable {
	AFFINODE_UNMOVABLE_SMALL = 0,    /* allocations under 2 MiB */
	AFFINODE_UNMOVABLE_MANAGED = 1,  /* managed (unified) memory */
	AFFINODE_UNMOVABLE_MAPPED = 2,   /* the application's own mappings (cuMemCreate) */
	AFFINODE_UNMOVABLE_POOL = 3,     /* stream-ordered pools */
	AFFINODE_UNMOVABLE_ARRAY = 4,    /* CUDA arrays */
	AFFINODE_UNMOVABLE_SHARED = 5,   /* shared with another process */
	AFFINODE_UNMOVABLE_UNBACKED = 6, /* large; the device has no virtual memory management, or another library limits it */
	AFFINODE_UNMOVABLE_DEVICE = 7,   /* devices may write to it without a call: RDMA, GPUDirect Storage */
	AFFINODE_UNMOVABLE_REASONS = 8,
};

enum affinode_class {
	AFFINODE_CLASS_HOST = 0,    /* bookkeeping on the host: never waits */
	AFFINODE_CLASS_QUERY = 1,   /* never waits, not activity */
	AFFINODE_CLASS_FREE = 2,    /* frees and destroys: never wait, never cancelled */
	AFFINODE_CLASS_LAUNCH = 3,
	AFFINODE_CLASS_COPY = 4,
	AFFINODE_CLASS_ALLOC = 5,
	AFFINODE_CLASS_SYNC = 6,
	AFFINODE_CLASS_MODULE = 7,  /* modules and contexts: wait, never cancelled */
	AFFINODE_CLASSES = 8,
};

enum affinode_depth {
	AFFINODE_DEPTH_NONE = 0,
	AFFINODE_DEPTH_MEMORY = 1,  /* device memory; the context stays */
	AFFINODE_DEPTH_CONTEXT = 2, /* everything */
};

struct affinode_page_gpu {
	uint8_t uuid[16];
	uint64_t resident_bytes; /* movable, and on the GPU now */
	uint64_t parked_bytes;   /* movable, and in host memory or on disk now */
	uint64_t unmovable_bytes[AFFINODE_UNMOVABLE_REASONS]; /* stay on the GPU */
};

enum affinode_page_flags {
	AFFINODE_PAGE_SIMULATED = 1u << 0,
	AFFINODE_PAGE_UNPARKABLE = 1u << 1,
	AFFINODE_PAGE_DYING = 1u << 2,
	AFFINODE_PAGE_CANCELLING = 1u << 3, /* waiting calls fail at the moment */
	AFFINODE_PAGE_DROPS_CACHES = 1u << 4, /* the process serves DROP_CACHES */
	AFFINODE_PAGE_INTEGRATED = 1u << 5, /* a GPU uses the host's memory, which is why memory counts as UNBACKED */
};

#define AFFINODE_ENTRY_POINTS 20u

struct affinode_entry_point {
	char name[56]; /* NUL-terminated, cut where it is longer */
	uint64_t calls;
};

struct affinode_page {
	uint32_t magic;
	uint16_t version;
	uint16_t size_of_gpu; /* sizeof(struct affinode_page_gpu) */
	int32_t pid;
	uint32_t flags;
	uint32_t state;
	uint32_t want; /* calls waiting at the closed gate */
	uint64_t sequence;
	uint64_t state_since_ns;
	uint64_t last_activity_ns; /* last seen use: a launch, copy, allocation, module, or call that waits for work; sampled */
	uint64_t heartbeat_ns;     /* when the page was last sampled: tells the process's clock from the controller's */
	uint32_t calls_in_flight;
	uint32_t captures;         /* stream captures open */
	uint32_t epoch;            /* last command begun */
	uint32_t gpu_count;
	uint64_t reserved;
	uint64_t calls[AFFINODE_CLASSES];
	uint64_t parks, resumes;
	uint64_t last_park_ns, last_park_bytes;     /* duration and size of the last ones */
	uint64_t last_resume_ns, last_resume_bytes;
	uint64_t copy_bytes; /* host memory that holds parked contents, of this process alone; zero chunks take none */
	uint64_t retained_bytes; /* host memory of retained copies: TRIM gives it back */
	uint64_t last_park_copied_bytes, last_park_zero_bytes; /* the rest of last_park_bytes was unchanged */
	uint64_t mended_chunks; /* 2 MiB chunks whose digest was wrong after a resume's first copy */
	uint32_t depth;         /* how deep it is parked: enum affinode_depth */
	uint32_t context_gpu;   /* at context depth: which of `gpus` the context left, from 1; 0: none, or it is not said */
	uint64_t lot_bytes;     /* of all lots that the process has, those of earlier controllers included; what is in them counts in
				 * copy_bytes and retained_bytes, too */
	uint64_t context_bytes; /* at context depth: what the context needs to come back, beside the parked bytes */
	struct affinode_page_gpu gpus[AFFINODE_MAX_GPUS];
	uint64_t disk_bytes;         /* contents on disk: of a parked process its own, of a resident one its retained copy there */
	uint64_t disk_written_bytes; /* all that was ever written */
	uint64_t last_resume_disk_bytes; /* what of the last resume came from disk */
	/* While calls are counted by entry point: since when, and those that were called most. */
	uint64_t counted_since_ns; /* 0: they are not */
	uint32_t entry_point_count;
	uint32_t reserved_count;
	struct affinode_entry_point entry_points[AFFINODE_ENTRY_POINTS];
	uint64_t shared_bytes;      /* contents, or retained copies, in packs in host memory that other processes of the user have, too */
	uint64_t shared_part_bytes; /* the process's part of what these packs take: one that two processes have counts half in each */
};

_Static_assert(sizeof(struct affinode_header) == 16, "header");
_Static_assert(sizeof(struct affinode_hello) == 192, "hello");
_Static_assert(sizeof(struct affinode_grant) == 216, "grant");
_Static_assert(sizeof(struct affinode_notify) == 48, "notify");
_Static_assert(sizeof(struct affinode_command) == 232, "command");
_Static_assert(sizeof(struct affinode_reply) == 232, "reply");
_Static_assert(sizeof(struct affinode_request) == 32, "request");
_Static_assert(sizeof(struct affinode_welcome) == 56, "welcome");
_Static_assert(sizeof(struct affinode_notice) == 216, "notice");
_Static_assert(sizeof(struct affinode_result) == 216, "result");
_Static_assert(sizeof(struct affinode_page_gpu) == 96, "page gpu");
_Static_assert(sizeof(struct affinode_page) <= AFFINODE_PAGE_SIZE, "page");

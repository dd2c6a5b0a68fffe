#define _GNU_SOURCE
#include "link/link.h"
#include "state/controller.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/own_thread.h"
#include "gate/entry_point_counts.h"
#include "gate/gate.h"
#include "host/lent_memory.h"
#include "link/drop_caches.h"
#include "link/internal.h"
#include "link/requests.h"
#include "mover/mover.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define SAMPLE_RESIDENT_NS (100 * MS_NS)
#define SAMPLE_PARKED_NS S_NS
/* A call waits and no controller is there: this long is left for one to come back.  */
#define ALONE_AFTER_NS (2 * S_NS)
#define ALONE_AGAIN_NS S_NS

/* Change between parked and queued, which is parked with a call that waits, as calls come and give up.  */
static void settle_queued(void)
{
	if (gate_calls_waiting() > 0)
		shim_move_state(AFFINODE_STATE_PARKED, AFFINODE_STATE_QUEUED);
	else
		shim_move_state(AFFINODE_STATE_QUEUED, AFFINODE_STATE_PARKED);
}

static void tell_changes(void)
{
	struct ask_message message;
	enum affinode_state state = shim_state();
	bool want = state == AFFINODE_STATE_QUEUED || mover_prepared_is_wanted() ||
		    (link_.told_want && state == AFFINODE_STATE_PARKING && gate_calls_waiting() > 0); /* its rest is parked */
	uint32_t lot;

	if (!link_.welcomed)
		return;
	if (state != link_.told_state)
		link_notify(AFFINODE_NOTIFY_STATE);
	if (want != link_.told_want)
		link_notify(want ? AFFINODE_NOTIFY_WANT : AFFINODE_NOTIFY_UNWANT);
	link_.told_state = state;
	link_.told_want = want;
	while (link_.socket >= 0 && lots_next_ended(&lot)) {
		struct affinode_notify ended = {.kind = AFFINODE_NOTIFY_LOT_END};

		link_send(&ended, AFFINODE_NOTIFY, sizeof(ended), lot);
	}
	while (link_.socket >= 0 && asks_next_message(&message)) {
		if (message.is_room)
			link_send(&message.notify, AFFINODE_NOTIFY, sizeof(message.notify),
				  message.notify.header.epoch);
		else
			link_send(&message.request, AFFINODE_REQUEST, sizeof(message.request),
				  message.request.header.epoch);
	}
}

/* Resume the process for a call that waits while no controller is there. It is tried again and again until there is room.  */
static void resume_alone(uint64_t now)
{
	struct move move = {.kind = MOVE_RESUME_ALONE};

	if (link_.welcomed || link_is_away() || shim_state() != AFFINODE_STATE_QUEUED) {
		link_.alone_at_ns = 0;
		return;
	}
	if (!link_.alone_at_ns) {
		link_.alone_at_ns = now + ALONE_AFTER_NS;
		return;
	}
	if (now < link_.alone_at_ns)
		return;
	log_line("no controller: resuming alone");
	mover_submit(&move);
	link_.alone_at_ns = now + ALONE_AGAIN_NS;
}

static void sample(uint64_t now)
{
	enum affinode_state state = shim_state();
	bool resident = state == AFFINODE_STATE_RESIDENT;

	if (now < link_.sample_at_ns && resident)
		return;
	gate_forget_dead_threads(); /* or the process would seem busy, and never be parked */
	page_sample();
	/* What a park has taken of host memory by now is seen in the machine's figures at once, and must be in the
	 * page too.  */
	resident = resident || state == AFFINODE_STATE_PARKING;
	link_.sample_at_ns = now + (resident ? SAMPLE_RESIDENT_NS : SAMPLE_PARKED_NS);
}

/* In this order: the wait is that of the move which was asked for only if that had begun by then, and has no outcome yet.  */
static void watch_mover(uint64_t now)
{
	uint64_t wait, deadline = mover_wait_deadline_ns(&wait);
	struct moved moved, refused = {.move = link_.move};
	bool has_begun = !mover_has_next();
	enum reason why;

	if (!mover_take_outcome(&moved)) {
		if (deadline && now >= deadline && mover_revoke_wait(wait, &refused.status, &why) && link_.owes_reply && has_begun) {
			snprintf(refused.text, sizeof(refused.text), "%s", reason_words(why));
			link_.owes_reply = false;
			link_reply(&refused);
		}
		return;
	}
	if (moved.status == AFFINODE_PREPARED) {
		if (link_.owes_reply)
			link_reply(&moved);
		return;
	}
	settle_queued();
	page_sample(); /* before the answer: its reader reads the page next */
	link_.sample_at_ns = now + SAMPLE_RESIDENT_NS; /* not the long pause of a parked process */
	if (moved.move.kind == MOVE_HIBERNATE)
		tell_changes(); /* the lots that have ended */
	if (link_.owes_reply)
		link_reply(&moved);
	if (link_.owes_reply && moved.move.kind == MOVE_HIBERNATE && moved.status == AFFINODE_OK)
		link_leave(moved.move.folder);
	link_.owes_reply = false;
}

static void answer_caches(void)
{
	struct affinode_reply reply = {.command = AFFINODE_COMMAND_DROP_CACHES};
	uint32_t epoch;

	if (caches_take_answer(&epoch, &reply.status))
		link_send(&reply, AFFINODE_REPLY, sizeof(reply), epoch);
}

static void earlier(uint64_t *at, uint64_t than)
{
	if (than && than < *at)
		*at = than;
}

static int poll_timeout_ms(uint64_t now)
{
	uint64_t wait, at = now + S_NS;

	earlier(&at, link_.sample_at_ns);
	earlier(&at, link_.alone_at_ns);
	earlier(&at, mover_wait_deadline_ns(&wait));
	if (link_is_away())
		earlier(&at, now + AWAY_LOOK_NS);
	else if (link_.socket < 0)
		earlier(&at, link_.connect_at_ns);
	return at <= now ? 1 : (int)((at - now) / MS_NS) + 1;
}

/* Do now what was to be done at a moment of the old clock: this one went back, since the process was woken from an image.  */
static void clock_went_back(uint64_t now)
{
	log_line("the clock went back by %.1f s", (double)(link_.looked_ns - now) / 1e9);
	link_.heard_ns = link_.said_ns = now;
	link_.connect_at_ns = link_.sample_at_ns = link_.alone_at_ns = 0;
	gate_cancel_end();
	entry_points_count_for(0);
}

static void *link_main(void *unused)
{
	uint64_t drained;

	(void)unused;
	link_.connect_pause_ns = CONNECT_FIRST_NS;
	for (;;) {
		uint64_t now = clock_ns();
		struct pollfd fds[2] = {{.fd = atomic_load(&link_wake_fd), .events = POLLIN},
					{.fd = link_.socket, .events = POLLIN}};

		if (now < link_.looked_ns)
			clock_went_back(now);
		link_look_whether_away(now);
		link_.looked_ns = now;
		watch_mover(now);
		answer_caches();
		settle_queued();
		link_look_whether_taken();
		link_try_connect(now);
		link_say_hello(now);
		tell_changes();
		link_keep_alive(now);
		resume_alone(now);
		sample(now);
		fds[1].fd = link_.socket;
		poll(fds, 2, poll_timeout_ms(clock_ns()));
		if (fds[0].revents & POLLIN) {
			ssize_t n = read(fds[0].fd, &drained, sizeof(drained));
			(void)n;
		}
		if (link_.socket >= 0 && fds[1].revents)
			link_receive();
	}
	return NULL;
}

int link_start(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return -errno;
	atomic_store(&link_wake_fd, fd);
	return thread_begin(link_main, NULL);
}

void link_begin_again(void)
{
	int fd = atomic_exchange(&link_wake_fd, -1);

	if (fd >= 0)
		close(fd);
	if (link_.socket >= 0)
		close(link_.socket);
	memset(&link_, 0, sizeof(link_));
	link_.socket = -1;
	link_set_connected(false);
}

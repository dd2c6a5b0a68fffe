#define _GNU_SOURCE
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "asks.h"
#include "caches.h"
#include "clock.h"
#include "gate.h"
#include "ipc.h"
#include "link_socket.h"
#include "log.h"
#include "lots.h"
#include "mover.h"
#include "page.h"
#include "shim.h"

#define SAMPLE_RESIDENT_NS (100 * MS_NS)
#define SAMPLE_PARKED_NS S_NS
#define CONNECT_FIRST_NS (100 * MS_NS)
#define CONNECT_LAST_NS (2 * S_NS)
/* A call waits and no controller is there: this long is left for one to come back.  */
#define ALONE_AFTER_NS (2 * S_NS)
#define ALONE_AGAIN_NS S_NS

/* Of the link thread alone, but for `connected` and what `words_lock` guards.  */
static struct {
	int socket; /* -1: none */
	bool welcomed;
	uint64_t heard_ns, said_ns, heartbeat_ns;
	uint64_t connect_at_ns, connect_pause_ns;
	uint64_t sample_at_ns;
	uint64_t alone_at_ns; /* 0: nobody waits, or a controller is there */
	uint32_t epoch;       /* the last command taken */
	struct move move;     /* the last one handed to the mover */
	bool owes_reply;      /* for that one, to this controller */
	enum affinode_state told_state;
	bool told_want;
} link_ = {.socket = -1};

static _Atomic int wake_fd = -1;
static _Atomic bool connected;
static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static struct affinode_notice notice;

void link_wake(void)
{
	int fd = atomic_load(&wake_fd);
	uint64_t one = 1;

	if (fd >= 0) {
		int error = errno;
		ssize_t written = write(fd, &one, sizeof(one));

		(void)written;
		errno = error;
	}
}

bool link_is_connected(void)
{
	return atomic_load(&connected);
}

void link_notice_text(char *text, size_t size)
{
	pthread_mutex_lock(&words_lock);
	snprintf(text, size, "%s", notice.text);
	pthread_mutex_unlock(&words_lock);
}

static const char *ordinal_ending(uint32_t n)
{
	if (n % 100 >= 11 && n % 100 <= 13)
		return "th";
	return n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
}

void link_place_text(char *text, size_t size)
{
	pthread_mutex_lock(&words_lock);
	if (notice.place && connected)
		snprintf(text, size, " (%u%s in line)", notice.place, ordinal_ending(notice.place));
	else
		text[0] = 0;
	pthread_mutex_unlock(&words_lock);
}

static void wait_longer(void)
{
	link_.connect_pause_ns *= 2;
	if (link_.connect_pause_ns > CONNECT_LAST_NS)
		link_.connect_pause_ns = CONNECT_LAST_NS;
}

static void disconnect(const char *why)
{
	if (link_.socket < 0)
		return;
	log_line("link closed: %s", why);
	close(link_.socket);
	link_.socket = -1;
	if (!link_.welcomed)
		wait_longer(); /* it will hardly be welcome in a moment: its grant has expired, … */
	link_.welcomed = false;
	link_.owes_reply = false; /* the next controller's numbers are others */
	mover_link_lost();
	atomic_store(&connected, false);
	asks_fail_requests();
	caches_forget();
	link_.connect_at_ns = clock_ns() + link_.connect_pause_ns;
}

static void send_message(void *message, enum affinode_message type, uint32_t size, uint32_t epoch)
{
	struct affinode_header *header = message;

	*header = (struct affinode_header){AFFINODE_LINK_MAGIC, AFFINODE_PROTOCOL_VERSION, (uint16_t)type, size, epoch};
	if (link_.socket < 0)
		return;
	if (send(link_.socket, message, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size)
		link_.said_ns = clock_ns();
	else
		disconnect("the controller does not read");
}

static void notify(uint32_t kind)
{
	struct affinode_notify message = {.kind = kind};

	send_message(&message, AFFINODE_NOTIFY, sizeof(message), 0);
}

static void reply(const struct moved *moved)
{
	struct affinode_reply message = {.command = moved->move.command, .status = moved->status,
					 .bytes = moved->bytes, .duration_ns = moved->duration_ns};

	memcpy(message.text, moved->text, sizeof(message.text));
	send_message(&message, AFFINODE_REPLY, sizeof(message), moved->move.epoch);
}

static void refuse(const struct affinode_command *command, enum affinode_status status, const char *text)
{
	struct moved moved = {.move = {.command = command->command, .epoch = command->header.epoch}, .status = status};

	snprintf(moved.text, sizeof(moved.text), "%s", text);
	reply(&moved);
}

static void take_move(const struct affinode_command *command)
{
	struct move move = {.command = command->command, .epoch = command->header.epoch,
			    .deadline_ns = command->deadline_ns,
			    .prepare = command->argument & AFFINODE_MOVE_PREPARE,
			    .to_context = command->argument & AFFINODE_MOVE_CONTEXT,
			    .preempts = command->command == AFFINODE_COMMAND_PARK &&
					command->argument & AFFINODE_MOVE_PREEMPT,
			    .budget = command->argument >> AFFINODE_MOVE_BUDGET_SHIFT << 20};

	if (command->deadline_ns && clock_ns() > command->deadline_ns)
		return refuse(command, AFFINODE_STALE, "the command came too late");
	page_set_epoch(command->header.epoch);
	if (mover_submit(&move) != 0)
		return refuse(command, AFFINODE_BUSY, "another move is under way");
	link_.move = move;
	link_.owes_reply = true;
}

/* A command is taken once: its number must rise, so that a message that was read late or twice does nothing.  */
static void on_command(const struct affinode_command *command, int *descriptor)
{
	if ((int32_t)(command->header.epoch - link_.epoch) <= 0) {
		log_line("command %u after %u: dropped", command->header.epoch, link_.epoch);
		return;
	}
	link_.epoch = command->header.epoch;
	switch (command->command) {
	case AFFINODE_COMMAND_PARK:
	case AFFINODE_COMMAND_RESUME:
		take_move(command);
		break;
	case AFFINODE_COMMAND_CANCEL:
		gate_cancel(command->argument);
		asks_wake_all();
		break;
	case AFFINODE_COMMAND_CANCEL_END:
		gate_cancel_end();
		break;
	case AFFINODE_COMMAND_DYING:
		shim_set_dying();
		break;
	case AFFINODE_COMMAND_ROOM:
		asks_answer_room(command->request, command->argument == 1);
		break;
	case AFFINODE_COMMAND_DROP_CACHES:
		if (!caches_ask(command))
			refuse(command, AFFINODE_NOTHING, "nobody drops caches here");
		break;
	case AFFINODE_COMMAND_COMMIT:
	case AFFINODE_COMMAND_ABORT:
		mover_decide(command->request, command->command == AFFINODE_COMMAND_COMMIT);
		break;
	case AFFINODE_COMMAND_TRIM:
		mover_trim(command->argument);
		break;
	case AFFINODE_COMMAND_LOT:
		if (*descriptor >= 0)
			lots_add(*descriptor, command->argument, command->request);
		*descriptor = -1;
		mover_look();
		break;
	default:
		log_line("unknown command %u: ignored", command->command);
	}
}

static void on_welcome(const struct affinode_welcome *welcome)
{
	link_.welcomed = true;
	link_.connect_pause_ns = CONNECT_FIRST_NS;
	link_.heartbeat_ns = welcome->heartbeat_ms * MS_NS;
	if (link_.heartbeat_ns < 100 * MS_NS || link_.heartbeat_ns > 60 * S_NS)
		link_.heartbeat_ns = 2 * S_NS;
	link_.told_state = AFFINODE_STATE_NONE;
	link_.told_want = false;
	link_.alone_at_ns = 0;
	asks_begin_again();
	lots_forget_numbers();
	atomic_store(&connected, true);
	log_line("link up: controller %.32s", welcome->controller_version);
}

static void on_message(const union link_message *message, int *descriptor)
{
	link_.heard_ns = clock_ns();
	switch (message->header.type) {
	case AFFINODE_WELCOME:
		return on_welcome(&message->welcome);
	case AFFINODE_COMMAND:
		return on_command(&message->command, descriptor);
	case AFFINODE_NOTICE:
		pthread_mutex_lock(&words_lock);
		notice = message->notice;
		notice.text[sizeof(notice.text) - 1] = 0;
		pthread_mutex_unlock(&words_lock);
		return;
	case AFFINODE_RESULT:
		return asks_answer_request(message->header.epoch, message->result.status, message->result.text);
	default:
		return; /* heartbeats, and messages of later versions */
	}
}

static void receive(void)
{
	union link_message message;
	int descriptor;

	for (int i = 0; i < 64 && link_.socket >= 0; i++) {
		int got = link_socket_receive(link_.socket, &message, &descriptor);

		if (got == -EAGAIN)
			return;
		if (got < 0)
			return disconnect(got == -EPROTO ? "a malformed message" : "closed by the controller");
		on_message(&message, &descriptor);
		if (descriptor >= 0)
			close(descriptor);
	}
}

static void try_connect(uint64_t now)
{
	if (link_.socket >= 0 || now < link_.connect_at_ns)
		return;
	link_.socket = link_socket_connect();
	if (link_.socket < 0) {
		link_.connect_at_ns = now + link_.connect_pause_ns;
		wait_longer();
		return;
	}
	link_.epoch = 0;
	link_.heard_ns = link_.said_ns = now;
	link_.heartbeat_ns = 2 * S_NS;
	int error = link_socket_hello(link_.socket);
	if (error)
		disconnect("hello could not be sent");
}

/* Parked with a call waiting is "queued"; the difference is kept here, as calls come and give up.  */
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
	bool want = state == AFFINODE_STATE_QUEUED || mover_prepared_is_wanted();
	uint32_t lot;

	if (!link_.welcomed)
		return;
	if (state != link_.told_state)
		notify(AFFINODE_NOTIFY_STATE);
	if (want != link_.told_want)
		notify(want ? AFFINODE_NOTIFY_WANT : AFFINODE_NOTIFY_UNWANT);
	link_.told_state = state;
	link_.told_want = want;
	while (link_.socket >= 0 && lots_next_ended(&lot)) {
		struct affinode_notify ended = {.kind = AFFINODE_NOTIFY_LOT_END};

		send_message(&ended, AFFINODE_NOTIFY, sizeof(ended), lot);
	}
	while (link_.socket >= 0 && asks_next_message(&message)) {
		if (message.is_room)
			send_message(&message.notify, AFFINODE_NOTIFY, sizeof(message.notify),
				     message.notify.header.epoch);
		else
			send_message(&message.request, AFFINODE_REQUEST, sizeof(message.request),
				     message.request.header.epoch);
	}
}

static void keep_alive(uint64_t now)
{
	struct affinode_heartbeat beat;

	if (link_.socket < 0)
		return;
	if (now - link_.heard_ns > 3 * link_.heartbeat_ns)
		return disconnect("the controller is silent");
	if (link_.welcomed && now - link_.said_ns >= link_.heartbeat_ns)
		send_message(&beat, AFFINODE_HEARTBEAT, sizeof(beat), 0);
}

/* With no controller, a call that waits is served by ourselves, as soon as there is room, again and again.  */
static void resume_alone(uint64_t now)
{
	struct move move = {.command = AFFINODE_COMMAND_RESUME, .alone = true};

	if (link_.welcomed || shim_state() != AFFINODE_STATE_QUEUED) {
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
	bool resident = shim_state() == AFFINODE_STATE_RESIDENT;

	if (now < link_.sample_at_ns && resident)
		return;
	gate_forget_dead_threads(); /* or the process would seem busy, and never be parked */
	page_sample();
	link_.sample_at_ns = now + (resident ? SAMPLE_RESIDENT_NS : SAMPLE_PARKED_NS);
}

static void watch_mover(uint64_t now)
{
	uint64_t deadline = mover_wait_deadline_ns();
	struct moved moved;

	/* A move that the mover has not begun is none of what it waits for.  */
	if (deadline && now >= deadline && mover_revoke_wait() && link_.owes_reply && !mover_has_next()) {
		struct moved refused = {.move = link_.move, .status = AFFINODE_BUSY,
					.text = "the GPU is still computing"};

		link_.owes_reply = false;
		reply(&refused);
	}
	if (!mover_take_outcome(&moved))
		return;
	if (moved.status == AFFINODE_PREPARED) {
		if (link_.owes_reply)
			reply(&moved);
		return;
	}
	settle_queued();
	page_sample(); /* before the answer: who reads it reads the page next */
	link_.sample_at_ns = now + SAMPLE_RESIDENT_NS; /* not the long pause of a parked process */
	if (link_.owes_reply)
		reply(&moved);
	link_.owes_reply = false;
}

static void answer_caches(void)
{
	struct moved dropped = {.move = {.command = AFFINODE_COMMAND_DROP_CACHES}};
	int status;

	if (!caches_take_answer(&dropped.move.epoch, &status))
		return;
	dropped.status = (enum affinode_status)status;
	reply(&dropped);
}

static void earlier(uint64_t *at, uint64_t than)
{
	if (than && than < *at)
		*at = than;
}

static int poll_timeout_ms(uint64_t now)
{
	uint64_t at = now + S_NS;

	earlier(&at, link_.sample_at_ns);
	earlier(&at, link_.alone_at_ns);
	earlier(&at, mover_wait_deadline_ns());
	if (link_.socket < 0)
		earlier(&at, link_.connect_at_ns);
	return at <= now ? 1 : (int)((at - now) / MS_NS) + 1;
}

static void *link_main(void *unused)
{
	uint64_t drained;

	(void)unused;
	link_.connect_pause_ns = CONNECT_FIRST_NS;
	for (;;) {
		uint64_t now = clock_ns();
		struct pollfd fds[3] = {{.fd = atomic_load(&wake_fd), .events = POLLIN},
					{.fd = link_.socket, .events = POLLIN},
					{.fd = ipc_server_fd(), .events = POLLIN}};

		watch_mover(now);
		answer_caches();
		settle_queued();
		try_connect(now);
		tell_changes();
		keep_alive(now);
		resume_alone(now);
		sample(now);
		fds[1].fd = link_.socket;
		poll(fds, 3, poll_timeout_ms(clock_ns()));
		if (fds[0].revents & POLLIN) {
			ssize_t n = read(fds[0].fd, &drained, sizeof(drained));
			(void)n;
		}
		if (link_.socket >= 0 && fds[1].revents)
			receive();
		if (fds[2].revents)
			ipc_serve();
	}
	return NULL;
}

int link_start(void)
{
	sigset_t all, before;
	pthread_t thread;
	int error, fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return -errno;
	atomic_store(&wake_fd, fd);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, link_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

void link_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	int fd = atomic_exchange(&wake_fd, -1);

	memcpy(&words_lock, &fresh, sizeof(fresh));
	if (fd >= 0)
		close(fd);
	if (link_.socket >= 0)
		close(link_.socket);
	memset(&link_, 0, sizeof(link_));
	link_.socket = -1;
	atomic_store(&connected, false);
	memset(&notice, 0, sizeof(notice));
}

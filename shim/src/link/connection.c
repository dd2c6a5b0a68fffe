/* The connection to the controller: looked for again and again, kept alive both ways, left when it is silent.  */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/discovery.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "host/lent_memory.h"
#include "host/packs/spill_file.h"
#include "link/drop_caches.h"
#include "link/grant.h"
#include "link/internal.h"
#include "link/link.h"
#include "link/requests.h"
#include "mover/mover.h"
#include "state/controller.h"
#include "state/status_page.h"

#define CONNECT_LAST_NS (2 * S_NS)
/* A controller that is killed before its welcome hangs up, too: so often in a row one refuses the process.  */
#define UNWELCOME_MOST 3
/* That long the controller has to hang up.  */
#define HANG_UP_NS (2 * S_NS)

struct link_state link_ = {.socket = -1};

static _Atomic bool is_to_introduce;

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
	if (!link_.welcomed) {
		wait_longer(); /* it will hardly be welcome in a moment: its grant has expired, … */
		link_note_attempt(++link_.unwelcome < UNWELCOME_MOST);
	}
	link_.welcomed = link_.owes_hello = false;
	link_.owes_reply = false; /* the next controller's numbers are others */
	mover_link_lost();
	link_set_connected(false);
	asks_fail_requests();
	caches_forget();
	lots_forget_numbers();
	mover_lots_changed();
	link_.connect_at_ns = clock_ns() + link_.connect_pause_ns;
}

void link_introduce_again(void)
{
	atomic_store(&is_to_introduce, true);
	link_wake();
}

void link_look_whether_taken(void)
{
	if (link_.owes_reply || !atomic_exchange(&is_to_introduce, false) || link_.socket < 0)
		return;
	disconnect("the process is another kernel's now");
	link_.connect_at_ns = 0;
}

void link_send(void *message, enum affinode_message type, uint32_t size, uint32_t epoch)
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

void link_notify(uint32_t kind)
{
	struct affinode_notify message = {.kind = kind};

	link_send(&message, AFFINODE_NOTIFY, sizeof(message), 0);
}

void link_reply(const struct moved *moved)
{
	struct affinode_reply message = {.command = move_kinds[moved->move.kind].command, .status = moved->status,
					 .bytes = moved->bytes, .duration_ns = moved->duration_ns};

	memcpy(message.text, moved->text, sizeof(message.text));
	link_send(&message, AFFINODE_REPLY, sizeof(message), moved->move.epoch);
}

void link_receive(void)
{
	union link_message message;
	int descriptor;

	for (int i = 0; i < 64 && link_.socket >= 0; i++) {
		int got = link_socket_receive(link_.socket, &message, &descriptor);

		if (got == -EAGAIN)
			return;
		if (got < 0)
			return disconnect(got == -EPROTO ? "a malformed message" : "closed by the controller");
		link_take_message(&message, &descriptor);
		if (descriptor >= 0)
			close(descriptor);
	}
}

void link_try_connect(uint64_t now)
{
	bool is_asked = link_must_connect();

	if (link_.socket >= 0 || link_is_away() || (now < link_.connect_at_ns && !is_asked))
		return;
	link_.socket = link_socket_connect();
	if (link_.socket < 0) {
		/* One that was killed is started anew, by a program that may not have noted its end yet.  */
		link_note_attempt(link_.socket == -EAGAIN || link_.socket == -ECONNREFUSED ||
				  discovery_start_is_under_way());
		link_.connect_at_ns = now + link_.connect_pause_ns;
		wait_longer();
		asks_wake_all();
		return;
	}
	link_.epoch = 0;
	link_.heard_ns = link_.said_ns = now;
	link_.heartbeat_ns = 2 * S_NS;
	link_.owes_hello = true;
	grant_begin();
}

void link_say_hello(uint64_t now)
{
	if (link_.socket < 0 || !link_.owes_hello || !grant_is_ready())
		return;
	link_.owes_hello = false;
	link_.heard_ns = now; /* its time to answer begins now */
	page_sample(); /* by which the controller tells our clock from its own */
	if (link_socket_hello(link_.socket) != 0)
		disconnect("hello could not be sent");
}

void link_keep_alive(uint64_t now)
{
	struct affinode_heartbeat beat = {0};

	if (link_.socket < 0)
		return;
	/* Sums, not differences: what was said in this turn was said after `now`.  */
	if (now > link_.heard_ns + 3 * link_.heartbeat_ns)
		return disconnect("the controller is silent");
	if (link_.welcomed && now >= link_.said_ns + link_.heartbeat_ns)
		link_send(&beat, AFFINODE_HEARTBEAT, sizeof(beat), 0);
}

/* The controller hangs up when it has the answer: a message of its own would meet a closed socket, and it might not read on.  */
void link_leave(const char *folder)
{
	snprintf(link_.away, sizeof(link_.away), "%s/away", folder);
	link_.away_ns = AFFINODE_AWAY_MS * MS_NS;
	link_.hang_up_at_ns = clock_ns() + HANG_UP_NS;
}

bool link_is_away(void)
{
	return link_.away[0] != '\0';
}

/* Time in which the process did not run does not count.  */
void link_look_whether_away(uint64_t now)
{
	uint64_t ran = now - link_.looked_ns < 2 * AWAY_LOOK_NS ? now - link_.looked_ns : 2 * AWAY_LOOK_NS;

	if (!link_is_away())
		return;
	if (now >= link_.hang_up_at_ns)
		disconnect("the process becomes an image");
	link_.away_ns -= ran < link_.away_ns ? ran : link_.away_ns;
	if (link_.away_ns && access(link_.away, F_OK) == 0)
		return;
	log_line("no image any more: back to a controller");
	link_.away[0] = '\0';
	link_.connect_at_ns = 0;
	link_.connect_pause_ns = CONNECT_FIRST_NS;
	spill_found_again();
}

/* What the controller says, and what is done about it.  */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "gate/entry_point_counts.h"
#include "gate/gate.h"
#include "gpu/devices.h"
#include "host/lent_memory.h"
#include "link/drop_caches.h"
#include "link/internal.h"
#include "link/link.h"
#include "link/requests.h"
#include "mover/mover.h"
#include "state/controller.h"
#include "state/shim_state.h"
#include "state/status_page.h"

static void refuse(const struct affinode_command *command, enum affinode_status status, enum reason reason)
{
	struct affinode_reply reply = {.command = command->command, .status = status};

	snprintf(reply.text, sizeof(reply.text), "%s", reason_words(reason));
	link_send(&reply, AFFINODE_REPLY, sizeof(reply), command->header.epoch);
}

static void take_move(const struct affinode_command *command)
{
	struct move move = {.kind = move_kind_of(command), .epoch = command->header.epoch,
			    .deadline_ns = command->deadline_ns, .budget = command->argument};

	if (move_parks(&move) || move_resumes(&move)) {
		move.in_two_steps = command->argument & AFFINODE_MOVE_PREPARE;
		move.budget = command->argument >> AFFINODE_MOVE_BUDGET_SHIFT << 20;
	}
	memcpy(move.folder, command->reason, sizeof(move.folder));
	if (move.in_two_steps && !move_kinds[move.kind].may_prepare)
		return refuse(command, AFFINODE_REFUSED, REASON_NOT_TOGETHER);
	if (move.kind == MOVE_MIGRATE && !gpu_uuid_read(command->reason, move.to_gpu))
		return refuse(command, AFFINODE_REFUSED, REASON_NO_UUID);
	if (command->deadline_ns && clock_ns() > command->deadline_ns)
		return refuse(command, AFFINODE_STALE, REASON_TOO_LATE);
	page_set_epoch(command->header.epoch);
	if (mover_submit(&move) != 0)
		return refuse(command, AFFINODE_BUSY, REASON_MOVE_UNDER_WAY);
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
	case AFFINODE_COMMAND_SPILL:
	case AFFINODE_COMMAND_READ_BACK:
	case AFFINODE_COMMAND_HIBERNATE:
	case AFFINODE_COMMAND_SHARE:
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
			refuse(command, AFFINODE_NOTHING, REASON_NO_CACHES);
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
		mover_lots_changed();
		break;
	case AFFINODE_COMMAND_LOT_FORGET:
		if (*descriptor >= 0)
			lots_forget(*descriptor);
		*descriptor = -1;
		mover_lots_changed();
		break;
	case AFFINODE_COMMAND_COUNT:
		entry_points_count_for(command->argument);
		break;
	default:
		log_line("unknown command %u: ignored", command->command);
	}
}

void shim_set_dying(void)
{
	page_set_flags(AFFINODE_PAGE_DYING, 0); /* before the calls that wake up read it */
	gate_set_dying();
	asks_wake_all();
}

static void on_welcome(const struct affinode_welcome *welcome)
{
	link_.welcomed = true;
	link_.unwelcome = 0;
	link_.connect_pause_ns = CONNECT_FIRST_NS;
	link_.heartbeat_ns = welcome->heartbeat_ms * MS_NS;
	if (link_.heartbeat_ns < 100 * MS_NS || link_.heartbeat_ns > 60 * S_NS)
		link_.heartbeat_ns = 2 * S_NS;
	link_.told_state = AFFINODE_STATE_NONE;
	link_.told_want = false;
	link_.alone_at_ns = 0;
	asks_begin_again();
	link_set_connected(true);
	log_line("link up: controller %.32s", welcome->controller_version);
}

void link_take_message(const union link_message *message, int *descriptor)
{
	link_.heard_ns = clock_ns();
	switch (message->header.type) {
	case AFFINODE_WELCOME:
		return on_welcome(&message->welcome);
	case AFFINODE_COMMAND:
		return on_command(&message->command, descriptor);
	case AFFINODE_NOTICE:
		return link_words_set(&message->notice);
	case AFFINODE_RESULT:
		return asks_answer_request(message->header.epoch, message->result.status, message->result.text);
	default:
		return; /* heartbeats */
	}
}

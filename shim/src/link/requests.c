#include "link/requests.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/discovery.h"
#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "gate/gate.h"
#include "gate/sigint.h"
#include "gpu/gpu_lock.h"
#include "state/controller.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define MAX_ASKS 64
#define LOOK_AGAIN_NS (200 * MS_NS)
#define LOOK_LATE_NS (5 * S_NS) /* a longer pause between two looks is none of the machine's load */
/* Without a controller no kernel is parked. Where the process has met none, none is waited for. One that was met and is killed is
 * started anew within seconds, and one that is stuck may come to itself, while others may end or free something: the allocation is
 * tried again every second. After ALONE_ALL_S of such waiting without any since the last, of all the process's allocations together,
 * it is out of memory, and so are later ones, at once. Time in which one is being started does not count, however long that takes on a
 * machine with much other work. Only time in which we looked counts: where the process or the whole machine was
 * stopped meanwhile (a frozen container, a migrated one), the link is lost, too, and the controller is there all the same.  */
#define ALONE_NS S_NS
#define ALONE_ALL_S 30
#define SAY_ALONE_AFTER_NS (3 * S_NS / 2)
/* Room was promised and gone again this often: give the program its answer. A process whose context comes back may hold the GPU for
 * seconds, while every promise is followed by another at once: so later ones are asked for at intervals.  */
#define MAX_PROMISES 100
#define PROMISES_AT_ONCE 40
#define PROMISE_AGAIN_NS (300 * MS_NS)
/* The process that has the GPU's lock may be stopped: an allocation waits ten minutes for it.  */
#define MAX_LOCKED 12000
#define LOCKED_AGAIN_NS (50 * MS_NS)

enum { ASK_FREE = 0, ASK_UNSENT, ASK_SENT, ASK_ENDED, ASK_ANSWERED };

struct ask {
	int stage;
	bool is_room;
	bool is_locked; /* of a room: enum affinode_notify_flags */
	uint32_t number;
	uint32_t kind;
	uint64_t argument; /* bytes of a room, argument of a request */
	uint8_t gpu_uuid[16];
	int status;
	char text[AFFINODE_TEXT_SIZE];
};

static OF_PROCESS pthread_mutex_t asks_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct ask asks[MAX_ASKS];
static uint32_t next_number = 1;
static _Atomic uint32_t controllers; /* that have welcomed the shim */
static _Atomic uint64_t alone_ns; /* that allocations have waited without a controller, since the last */
static OF_PROCESS uint64_t alone_counted_ns; /* until when that is counted; under asks_lock */
static _Atomic uint32_t answers; /* futex: changes when any ask is answered */

static struct ask *ask_begin(bool is_room, uint32_t kind, uint64_t argument, const struct device *device)
{
	struct ask *ask = NULL;

	pthread_mutex_lock(&asks_lock);
	for (int i = 0; i < MAX_ASKS && !ask; i++)
		if (asks[i].stage == ASK_FREE)
			ask = &asks[i];
	if (ask) {
		memset(ask, 0, sizeof(*ask));
		ask->stage = ASK_UNSENT;
		ask->is_room = is_room;
		ask->is_locked = is_room && gpu_lock_in_the_way;
		ask->number = next_number++;
		ask->kind = kind;
		ask->argument = argument;
		if (device)
			memcpy(ask->gpu_uuid, device->uuid, sizeof(ask->gpu_uuid));
	}
	pthread_mutex_unlock(&asks_lock);
	if (ask)
		link_wake();
	return ask;
}

/* End a question. The controller is told that room is not needed any more. Everything else is forgotten, and that too if no
 * controller is there: the next one knows of no question (asks_begin_again), and places are few.  */
static void ask_end(struct ask *ask)
{
	pthread_mutex_lock(&asks_lock);
	ask->stage = ask->is_room && ask->stage != ASK_UNSENT && link_is_connected() ? ASK_ENDED : ASK_FREE;
	pthread_mutex_unlock(&asks_lock);
	link_wake();
}

static bool ask_is_answered(struct ask *ask)
{
	bool answered;

	pthread_mutex_lock(&asks_lock);
	answered = ask->stage == ASK_ANSWERED;
	pthread_mutex_unlock(&asks_lock);
	return answered;
}

/* How an attempt without a controller stands: it goes on, the allocation is tried again, or there is no room.  */
enum standing { GOES_ON, AGAIN, NO_ROOM };

/* Count the time without a controller. Waits of several threads at the same time count once.  */
static void count_alone(struct room_wait *wait, uint64_t looked, uint64_t now)
{
	uint64_t passed = now - looked < LOOK_LATE_NS ? now - looked : LOOK_LATE_NS;

	wait->alone_ns += passed;
	pthread_mutex_lock(&asks_lock);
	if (alone_counted_ns > looked && alone_counted_ns <= now && now - alone_counted_ns < passed)
		passed = now - alone_counted_ns;
	alone_counted_ns = now;
	pthread_mutex_unlock(&asks_lock);
	atomic_fetch_add(&alone_ns, passed);
}

/* Return how an attempt stands while no controller answers. `since`: when that began. `looks`: how often a controller had been
 * looked for in vain before the attempt.  */
static enum standing stand_alone(struct room_wait *wait, uint64_t since, uint32_t looks)
{
	uint64_t all_ns = atomic_load(&alone_ns);

	if (!atomic_load(&controllers) && link_looks() != looks && !link_may_come())
		return NO_ROOM;
	if (all_ns >= ALONE_ALL_S * S_NS) {
		if (wait->said_alone)
			tell_person("no GPU memory came free in %d s, and no controller answers: out of memory.", ALONE_ALL_S);
		return NO_ROOM;
	}
	if (!wait->said_alone && wait->alone_ns >= SAY_ALONE_AFTER_NS) {
		uint64_t before_ns = all_ns > wait->alone_ns ? all_ns - wait->alone_ns : 0;

		wait->told.printed = wait->told.alone = wait->said_alone = true;
		tell_person("waiting for GPU memory: no controller answers. Out of memory if none comes free in %d s. "
			    "Interrupt the kernel to give up.", ALONE_ALL_S - (int)(before_ns / S_NS));
	}
	return clock_ns() - since >= ALONE_NS ? AGAIN : GOES_ON;
}

/* Begin to count anew if another controller was met: several may end during a long wait, and what counts is the time since the
 * last.  */
static void look_for_new_controller(struct room_wait *wait)
{
	uint32_t met = atomic_load(&controllers);

	if (met == wait->controllers)
		return;
	wait->controllers = met;
	wait->alone_ns = 0;
	wait->said_alone = false;
}

/* Wait for one attempt, until it is answered, cancelled, or has had no controller for too long.  */
static CUresult wait_for_answer(struct ask *ask, struct room_wait *wait, uint32_t cancels)
{
	uint64_t looked = clock_ns(), alone_since = 0;
	uint32_t looks = link_looks();
	CUresult result;

	if (!atomic_load(&controllers))
		link_look();
	for (;;) {
		uint32_t seen = atomic_load(&answers);
		enum standing standing = GOES_ON;
		uint64_t now = clock_ns();

		result = gate_verdict(AFFINODE_CLASS_ALLOC, cancels);
		if (result != CUDA_SUCCESS)
			break;
		if (ask_is_answered(ask)) {
			result = ask->status ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
			gpu_lock_in_the_way ? wait->locked++ : wait->promises++;
			break;
		}
		look_for_new_controller(wait);
		if (link_is_connected() && alone_since) {
			alone_since = 0;
			interrupts_leave();
		} else if (!link_is_connected()) {
			if (alone_since) {
				if (!discovery_start_is_under_way())
					count_alone(wait, looked, now);
				interrupts_look();
			} else {
				alone_since = now;
				interrupts_watch();
			}
			standing = stand_alone(wait, alone_since, looks);
		}
		looked = now;
		if (standing != GOES_ON) {
			result = standing == AGAIN ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
			break;
		}
		futex_wait(&answers, seen, LOOK_AGAIN_NS);
		link_tell_wait(wait->since_ns, &wait->told);
	}
	link_end_told_wait(&wait->told);
	if (alone_since)
		interrupts_leave();
	return result;
}

CUresult ask_for_room(const struct device *device, uint64_t bytes, struct room_wait *wait)
{
	uint32_t cancels = atomic_load(&gate.cancels);
	CUresult result;
	struct ask *ask;

	if (!wait->since_ns)
		wait->since_ns = clock_ns();
	if (wait->promises >= MAX_PROMISES || wait->locked >= MAX_LOCKED || !shim_is_on())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (wait->locked)
		clock_sleep_ns(LOCKED_AGAIN_NS);
	if (wait->promises > PROMISES_AT_ONCE)
		clock_sleep_ns(PROMISE_AGAIN_NS);
	ask = ask_begin(true, 0, bytes, device);
	if (!ask)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = wait_for_answer(ask, wait, cancels);
	ask_end(ask);
	return result;
}

int ask_controller(uint32_t kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size)
{
	uint64_t until = clock_ns() + timeout_ns;
	struct ask *ask;
	int status;

	if (!link_is_connected())
		return -ENOTCONN;
	ask = ask_begin(false, kind, argument, NULL);
	if (!ask)
		return -EBUSY;
	while (!ask_is_answered(ask) && clock_ns() < until) {
		uint32_t seen = atomic_load(&answers);

		if (!ask_is_answered(ask))
			futex_wait(&answers, seen, LOOK_AGAIN_NS);
	}
	pthread_mutex_lock(&asks_lock);
	status = ask->stage == ASK_ANSWERED ? ask->status : -ETIMEDOUT;
	if (text && size)
		snprintf(text, size, "%s", ask->text);
	pthread_mutex_unlock(&asks_lock);
	ask_end(ask);
	return status;
}

static void notify_for(const struct ask *ask, uint32_t kind, struct affinode_notify *notify)
{
	memset(notify, 0, sizeof(*notify));
	notify->header.epoch = ask->number;
	notify->kind = kind;
	notify->flags = ask->is_locked ? AFFINODE_NOTIFY_LOCKED : 0;
	notify->bytes = ask->argument;
	memcpy(notify->gpu_uuid, ask->gpu_uuid, sizeof(notify->gpu_uuid));
}

bool asks_next_message(struct ask_message *message)
{
	bool found = false;

	pthread_mutex_lock(&asks_lock);
	for (int i = 0; i < MAX_ASKS && !found; i++) {
		struct ask *ask = &asks[i];

		found = ask->stage == ASK_UNSENT || ask->stage == ASK_ENDED;
		if (!found)
			continue;
		message->is_room = ask->is_room;
		if (ask->is_room) {
			notify_for(ask, ask->stage == ASK_UNSENT ? AFFINODE_NOTIFY_ROOM : AFFINODE_NOTIFY_ROOM_END,
				   &message->notify);
		} else {
			memset(&message->request, 0, sizeof(message->request));
			message->request.header.epoch = ask->number;
			message->request.kind = ask->kind;
			message->request.argument = ask->argument;
		}
		ask->stage = ask->stage == ASK_UNSENT ? ASK_SENT : ASK_FREE;
	}
	pthread_mutex_unlock(&asks_lock);
	return found;
}

void asks_begin_again(void)
{
	atomic_store(&alone_ns, 0);
	atomic_fetch_add(&controllers, 1);
	pthread_mutex_lock(&asks_lock);
	for (int i = 0; i < MAX_ASKS; i++) {
		if (asks[i].stage == ASK_SENT)
			asks[i].stage = ASK_UNSENT;
		else if (asks[i].stage == ASK_ENDED)
			asks[i].stage = ASK_FREE;
	}
	pthread_mutex_unlock(&asks_lock);
}

void asks_wake_all(void)
{
	atomic_fetch_add(&answers, 1);
	futex_wake_all(&answers);
}

static void answer(bool is_room, uint32_t number, int status, const char *text)
{
	pthread_mutex_lock(&asks_lock);
	for (int i = 0; i < MAX_ASKS; i++) {
		struct ask *ask = &asks[i];

		if (ask->is_room != is_room || ask->number != number ||
		    (ask->stage != ASK_SENT && ask->stage != ASK_UNSENT))
			continue;
		ask->status = status;
		snprintf(ask->text, sizeof(ask->text), "%s", text);
		ask->stage = ASK_ANSWERED;
	}
	pthread_mutex_unlock(&asks_lock);
	asks_wake_all();
}

void asks_answer_room(uint32_t number, bool granted)
{
	answer(true, number, granted, "");
}

void asks_answer_request(uint32_t number, int status, const char *text)
{
	answer(false, number, status, text);
}

void asks_fail_requests(void)
{
	pthread_mutex_lock(&asks_lock);
	for (int i = 0; i < MAX_ASKS; i++) {
		if (asks[i].is_room || (asks[i].stage != ASK_SENT && asks[i].stage != ASK_UNSENT))
			continue;
		asks[i].status = -ENOTCONN;
		asks[i].stage = ASK_ANSWERED;
	}
	pthread_mutex_unlock(&asks_lock);
	asks_wake_all();
}

/* Moves in two steps: prepared, told of, and carried out or undone as the controller decides (protocol.h).  */
#include <pthread.h>
#include <stdatomic.h>

#include "base/monotonic_futex.h"
#include "gate/gate.h"
#include "mover/internal.h"
#include "state/controller.h"

/* How often a prepared move looks for callers.  */
#define PREPARED_POLL_NS (5 * MS_NS)

bool mover_is_aborted(void)
{
	return atomic_load(&mover_queue.decision) == ABORT;
}

static bool is_wanted(void)
{
	return gate_calls_waiting() > 0 || mover_has_holders();
}

/* What is to become of a prepared move by now. `wanted_since`: when a call first waited for a park to end, 0: none.  */
static enum decision prepared_verdict(const struct move *move, uint64_t since, uint64_t *wanted_since)
{
	uint64_t now = clock_ns();

	if (atomic_load(&mover_queue.decision) != UNDECIDED)
		return atomic_load(&mover_queue.decision);
	if (move_resumes(move))
		return now - since > AFFINODE_PREPARED_MS * MS_NS ? COMMIT : UNDECIDED;
	if (atomic_load(&gate.dying))
		return ABORT;
	if (!is_wanted())
		return UNDECIDED;
	if (!*wanted_since) {
		*wanted_since = now;
		link_wake();
	}
	return now - *wanted_since > AFFINODE_PREPARED_CALL_MS * MS_NS ? ABORT : UNDECIDED;
}

bool mover_wait_for_commit(struct moved *moved)
{
	uint64_t since = clock_ns(), wanted_since = 0;
	enum decision now;

	pthread_mutex_lock(&mover_queue.lock);
	mover_queue.is_prepared = true;
	mover_queue.outcome = *moved;
	mover_queue.outcome.status = AFFINODE_PREPARED;
	mover_queue.outcome_waits = true;
	link_wake();
	while ((now = prepared_verdict(&moved->move, since, &wanted_since)) == UNDECIDED)
		mover_wait_for_change(PREPARED_POLL_NS);
	mover_queue.is_prepared = false;
	pthread_mutex_unlock(&mover_queue.lock);
	if (now == ABORT)
		outcome_is(moved, AFFINODE_REVOKED, wanted_since ? REASON_CALL_CAME : REASON_NOT_ALL_PROCESSES);
	return now == COMMIT;
}

void mover_decide(uint32_t epoch, bool commit)
{
	pthread_mutex_lock(&mover_queue.lock);
	if (mover_queue.runs && mover_queue.next.epoch == epoch && (mover_queue.is_prepared || !commit) &&
	    atomic_load(&mover_queue.decision) == UNDECIDED)
		atomic_store(&mover_queue.decision, commit ? COMMIT : ABORT);
	pthread_cond_signal(&mover_queue.changed);
	pthread_mutex_unlock(&mover_queue.lock);
}

void mover_link_lost(void)
{
	pthread_mutex_lock(&mover_queue.lock);
	if (mover_queue.runs && mover_queue.next.in_two_steps && atomic_load(&mover_queue.decision) == UNDECIDED)
		atomic_store(&mover_queue.decision, move_resumes(&mover_queue.next) ? COMMIT : ABORT);
	pthread_cond_signal(&mover_queue.changed);
	pthread_mutex_unlock(&mover_queue.lock);
}

bool mover_prepared_is_wanted(void)
{
	bool wanted;

	pthread_mutex_lock(&mover_queue.lock);
	wanted = mover_queue.is_prepared && move_parks(&mover_queue.next) && is_wanted();
	pthread_mutex_unlock(&mover_queue.lock);
	return wanted;
}

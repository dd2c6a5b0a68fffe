/* Contexts that are being ended, and the mover, which must not ask the driver about one meanwhile.  */
#include <pthread.h>
#include <stdatomic.h>

#include "base/monotonic_futex.h"
#include "base/per_process.h"
#include "gpu/contexts.h"

#define KEEP_POLL_NS (200 * 1000ull)
#define KEPT -1

static OF_PROCESS pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS _Atomic int endings; /* under way, at once if they are; or KEPT */

void contexts_ending(void)
{
	int now = atomic_load(&endings);

	while (now == KEPT || !atomic_compare_exchange_weak(&endings, &now, now + 1)) {
		if (now == KEPT)
			clock_sleep_ns(KEEP_POLL_NS);
		now = atomic_load(&endings);
	}
}

void contexts_ended(void)
{
	atomic_fetch_sub(&endings, 1);
}

void primary_contexts_lock(void)
{
	pthread_mutex_lock(&primaries_lock);
}

void primary_contexts_unlock(void)
{
	pthread_mutex_unlock(&primaries_lock);
}

bool contexts_keep(void)
{
	int none = 0;

	return atomic_compare_exchange_strong(&endings, &none, KEPT);
}

void contexts_let_end(void)
{
	atomic_store(&endings, 0);
}

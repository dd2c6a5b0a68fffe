/* Busy time per slice of 100 ms, and the throttled link.  */
#include "machine/activity.h"

#include <errno.h>
#include <time.h>

#include "machine/settings.h"

static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;

/* Only this process writes its logs, so a lock of its own is enough; NVML reads whole words and tolerates the rest.  */
static void add(struct sim_activity_log *log, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t slice = from / SIM_SLICE_NS, end = (slice + 1) * SIM_SLICE_NS;
		unsigned entry = slice % SIM_SLICES;
		uint64_t until = to < end ? to : end;

		if (log->slice[entry] != slice) {
			log->busy_ns[entry] = 0;
			log->slice[entry] = slice;
		}
		log->busy_ns[entry] += until - from;
		from = until;
	}
}

static uint64_t recent(uint64_t now, uint64_t from)
{
	uint64_t oldest = now > SIM_SLICES * SIM_SLICE_NS ? now - SIM_SLICES * SIM_SLICE_NS : 0;

	return from > oldest ? from : oldest;
}

void activity_begin(unsigned gpu, enum sim_activity kind)
{
	struct sim_process *self = machine_self();

	if (!self)
		return;
	pthread_mutex_lock(&own);
	if (self->log[gpu][kind].running++ == 0)
		self->log[gpu][kind].since_ns = monotonic_ns();
	pthread_mutex_unlock(&own);
}

void activity_end(unsigned gpu, enum sim_activity kind)
{
	struct sim_process *self = machine_self();
	struct sim_activity_log *log;

	if (!self)
		return;
	pthread_mutex_lock(&own);
	log = &self->log[gpu][kind];
	if (log->running && --log->running == 0) {
		uint64_t now = monotonic_ns();

		add(log, recent(now, log->since_ns), now);
		log->since_ns = 0;
	}
	pthread_mutex_unlock(&own);
}

unsigned activity_percent(const struct sim_process *process, unsigned gpu, enum sim_activity kind)
{
	const uint64_t window = 10 * SIM_SLICE_NS;
	const struct sim_activity_log *log = &process->log[gpu][kind];
	uint64_t now = monotonic_ns(), since = log->since_ns, busy = 0;
	uint64_t begin = now > window ? now - window : 0;

	for (unsigned i = 0; i < SIM_SLICES; i++)
		if (log->slice[i] * SIM_SLICE_NS >= begin && log->slice[i] * SIM_SLICE_NS <= now)
			busy += log->busy_ns[i];
	if (since && since < now)
		busy += now - (since > begin ? since : begin);
	busy = busy * 100 / window;
	return busy > 100 ? 100 : (unsigned)busy;
}

void activity_throttle(unsigned gpu, enum sim_direction direction, uint64_t bytes)
{
	uint64_t rate = settings()->copy_rate, until;
	struct timespec wake;

	if (!rate)
		return;
	machine_lock();
	until = machine()->gpus[gpu].link_free_ns[direction];
	if (until < monotonic_ns())
		until = monotonic_ns();
	until += (uint64_t)((double)bytes * 1e9 / (double)rate);
	machine()->gpus[gpu].link_free_ns[direction] = until;
	machine_unlock();
	wake.tv_sec = (time_t)(until / 1000000000u);
	wake.tv_nsec = (long)(until % 1000000000u);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) == EINTR)
		;
}

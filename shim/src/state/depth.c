#include "state/depth.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/environment.h"
#include "base/log.h"

static _Atomic int asked = -1;
static _Atomic bool is_out, is_started, can_migrate;
static _Atomic enum reason refusal;

bool checkpoint_is_asked(void)
{
	int known = atomic_load_explicit(&asked, memory_order_relaxed);

	if (known < 0) {
		const char *value = environment_now(AFFINODE_ENV_DEPTH);

		known = AFFINODE_CONTEXT_DEPTH && value && strcmp(value, "context") == 0;
		atomic_store(&asked, known);
	}
	return known;
}

void depth_say_if_left_out(void)
{
	const char *value = environment_now(AFFINODE_ENV_DEPTH);

	if (!AFFINODE_CONTEXT_DEPTH && value && strcmp(value, "context") == 0)
		tell_person("AFFINODE_DEPTH=context: this libaffinode.so was built without context depth, so the CUDA context stays "
			    "on the GPU when the kernel is freed. Install one that was built with `make CONTEXT_DEPTH=1`, or unset "
			    "AFFINODE_DEPTH.");
}

bool checkpoint_is_possible(void)
{
	return checkpoint_is_asked() && atomic_load(&is_started) && !atomic_load(&refusal);
}

void checkpoint_set_started(void)
{
	atomic_store(&is_started, true);
}

bool checkpoint_is_out(void)
{
	return atomic_load(&is_out);
}

void checkpoint_set_out(bool out)
{
	atomic_store(&is_out, out);
}

enum reason checkpoint_refusal(void)
{
	return atomic_load(&refusal);
}

void checkpoint_refuse(enum reason why)
{
	enum reason none = NO_REASON;

	if (checkpoint_is_asked() && atomic_compare_exchange_strong(&refusal, &none, why))
		log_line("the CUDA context stays on the GPU: %s", reason_words(why));
}

bool migration_is_possible(void)
{
	return atomic_load(&can_migrate);
}

void migration_set_possible(bool now)
{
	atomic_store(&can_migrate, now);
}

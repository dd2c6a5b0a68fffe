/* Slots: which threads are inside a driver call. Recycled, never freed: the closer reads them at any time.  */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#include "base/monotonic_futex.h"
#include "base/text_file.h"
#include "gate/gate.h"
#include "gate/thread_slots.h"

#define SLOTS_A_PAGE 32

/* A slot of no thread: threads without memory for one show in it that they wait.  */
static struct slot shared_slot = {.used = 1};
static _Atomic(struct slot *) slots = &shared_slot;
static pthread_key_t slot_key;
static pthread_once_t slot_key_once = PTHREAD_ONCE_INIT;
static bool slot_key_made;

__thread struct slot *gate_slot __attribute__((tls_model("initial-exec")));
static __thread struct slot *slot_aside __attribute__((tls_model("initial-exec")));

struct slot *slot_shared(void)
{
	return &shared_slot;
}

struct slot *slots_first(void)
{
	return atomic_load_explicit(&slots, memory_order_acquire);
}

static void slot_release(void *value)
{
	struct slot *slot = value;

	gate_slot = slot_aside = NULL;
	atomic_store(&slot->inside, 0);
	atomic_store(&slot->books, 0);
	atomic_store(&slot->waiting, 0);
	atomic_store(&slot->tid, 0);
	atomic_store(&slot->used, 0);
}

static void slot_make_key(void)
{
	slot_key_made = pthread_key_create(&slot_key, slot_release) == 0;
}

static bool slot_take(struct slot *slot)
{
	uint32_t free_ = 0;

	return atomic_compare_exchange_strong(&slot->used, &free_, 1);
}

/* Push more slots on the list, and return the first of them, taken; NULL for want of memory.  */
static struct slot *slots_grow(void)
{
	struct slot *page = mmap(NULL, SLOTS_A_PAGE * sizeof(*page), PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return NULL;
	atomic_store(&page[0].used, 1);
	for (int i = 0; i < SLOTS_A_PAGE - 1; i++)
		page[i].next = &page[i + 1];
	struct slot *head = atomic_load(&slots);
	do {
		page[SLOTS_A_PAGE - 1].next = head;
	} while (!atomic_compare_exchange_weak(&slots, &head, page));
	return page;
}

/* Return a slot for the calling thread, which is released when the thread ends; NULL for want of memory.  */
static struct slot *slot_acquire(void)
{
	struct slot *slot;

	pthread_once(&slot_key_once, slot_make_key);
	for (slot = slots_first(); slot; slot = slot->next)
		if (!atomic_load_explicit(&slot->used, memory_order_relaxed) && slot_take(slot))
			break;
	if (!slot)
		slot = slots_grow();
	if (!slot)
		return NULL;
	atomic_store(&slot->inside, 0);
	atomic_store(&slot->books, 0);
	atomic_store(&slot->nested, 0);
	atomic_store(&slot->waiting, 0);
	atomic_store(&slot->tid, (pid_t)syscall(SYS_gettid));
	gate_slot = slot;
	if (slot_key_made)
		pthread_setspecific(slot_key, slot);
	return slot;
}

struct slot *slot_own(void)
{
	if (gate_slot)
		return gate_slot;
	return slot_aside ? slot_aside : slot_acquire();
}

void slot_put_aside(void)
{
	slot_aside = slot_own();
	gate_slot = NULL;
}

void slot_take_back(void)
{
	if (slot_aside)
		gate_slot = slot_aside;
	slot_aside = NULL;
}

/* The list stays (the memory is the child's own copy), but every thread but this one is gone.  */
void slots_begin_again(void)
{
	for (struct slot *slot = slots_first(); slot; slot = slot->next) {
		atomic_store(&slot->inside, 0);
		atomic_store(&slot->waiting, 0);
		atomic_store(&slot->books, 0);
		if (slot == &shared_slot)
			continue;
		if (slot == gate_slot || slot == slot_aside) {
			atomic_store(&slot->tid, (pid_t)syscall(SYS_gettid));
			continue;
		}
		atomic_store(&slot->tid, 0);
		atomic_store(&slot->used, 0);
	}
}

/* Free the slot if its thread ended without giving it back, by a bare SYS_exit; return whether it did. A thread that ends in an
 * orderly way takes its id out first, so the exchange cannot hit the slot's next owner.  */
static bool slot_reclaim(struct slot *slot)
{
	pid_t tid = atomic_load(&slot->tid);

	if (tid <= 0 || syscall(SYS_tgkill, getpid(), tid, 0) == 0 || errno != ESRCH ||
	    !atomic_compare_exchange_strong(&slot->tid, &tid, 0))
		return false;
	atomic_store(&slot->inside, 0);
	atomic_store(&slot->books, 0);
	atomic_store(&slot->waiting, 0);
	atomic_store(&slot->used, 0);
	return true;
}

void slots_recover_dead(void)
{
	for (struct slot *slot = slots_first(); slot; slot = slot->next)
		if (atomic_load(&slot->inside))
			slot_reclaim(slot);
}

/* Read the stack pointer of a sleeping thread from /proc; 0 when it runs or cannot be read.  */
static uintptr_t stack_pointer_of(pid_t tid)
{
	char path[64], text[256];
	unsigned long long sp = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)tid);
	if (text_read(path, text, sizeof(text)) <= 0)
		return 0;
	/* "nr a0 a1 a2 a3 a4 a5 sp pc", or "-1 sp pc" outside a system call, or "running" */
	if (sscanf(text, "%*d %*x %*x %*x %*x %*x %*x %llx", &sp) != 1 && sscanf(text, "-1 %llx", &sp) != 1)
		return 0;
	return (uintptr_t)sp;
}

static bool in_one_mapping(uintptr_t a, uintptr_t b)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	bool same = false;

	if (!maps)
		return false;
	while (fgets(line, sizeof(line), maps)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx", &from, &to) == 2 && a >= from && a < to) {
			same = b >= from && b < to;
			break;
		}
	}
	fclose(maps);
	return same;
}

/* Return whether the thread has left the frame that it entered from by longjmp: it sleeps now with its stack pointer above that
 * frame, on the same stack. Such a thread cannot be inside the driver any more.  */
static bool slot_is_abandoned(const struct slot *slot)
{
	uintptr_t frame = (uintptr_t)atomic_load(&slot->pass);
	uintptr_t sp = stack_pointer_of(atomic_load(&slot->tid));

	return sp > frame && frame && in_one_mapping(frame, sp);
}

void slots_recover(void)
{
	for (struct slot *slot = slots_first(); slot; slot = slot->next) {
		if (atomic_load(&slot->used) && !slot_reclaim(slot) && atomic_load(&slot->inside)) {
			uint32_t inside = atomic_load(&slot->inside);
			struct gate_pass *pass = atomic_load(&slot->pass);

			if (slot_is_abandoned(slot) && atomic_load(&slot->pass) == pass)
				atomic_compare_exchange_strong(&slot->inside, &inside, 0);
		}
	}
}

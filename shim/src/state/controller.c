#include "state/controller.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/monotonic_futex.h"
#include "base/per_process.h"

#define TELL_WAIT_AFTER_NS (3 * S_NS)
#define WAIT_TEXT_SIZE (AFFINODE_TEXT_SIZE + 64) /* of a notice, and what to do */

_Atomic int link_wake_fd = -1;
static _Atomic bool connected, is_asked_to_look, may_come;
static _Atomic uint32_t looks;
static _Atomic uint64_t lost_ns; /* when the last controller was; 0: none was met */

void link_wake(void)
{
	int fd = atomic_load(&link_wake_fd);
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

void link_set_connected(bool now)
{
	if (atomic_load(&connected) && !now)
		atomic_store(&lost_ns, clock_ns());
	atomic_store(&connected, now);
}

void link_look(void)
{
	atomic_store(&is_asked_to_look, true);
	link_wake();
}

bool link_must_connect(void)
{
	return atomic_exchange(&is_asked_to_look, false);
}

void link_note_attempt(bool may_come_now)
{
	atomic_store(&may_come, may_come_now);
	atomic_fetch_add(&looks, 1);
}

uint32_t link_looks(void)
{
	return atomic_load(&looks);
}

bool link_may_come(void)
{
	return atomic_load(&may_come);
}

/* Guards what the controller last said to the user, which threads that wait read.  */
static OF_PROCESS pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static OF_PROCESS struct affinode_notice notice;
static OF_PROCESS unsigned displayed_waits; /* under words_lock, as the next */
static OF_PROCESS bool is_displayed;
static _Atomic uint32_t display_version;

/* With words_lock held.  */
static void display_changes(void)
{
	atomic_fetch_add(&display_version, 1);
	futex_wake_all(&display_version);
}

void link_words_set(const struct affinode_notice *said)
{
	pthread_mutex_lock(&words_lock);
	if (displayed_waits && strncmp(notice.text, said->text, sizeof(notice.text) - 1))
		display_changes();
	notice = *said;
	notice.text[sizeof(notice.text) - 1] = 0;
	pthread_mutex_unlock(&words_lock);
}

void link_notice_text(char *text, size_t size)
{
	pthread_mutex_lock(&words_lock);
	snprintf(text, size, "%s", notice.text);
	pthread_mutex_unlock(&words_lock);
}

/* Return whether no controller has answered for so long that the user is told: one that was killed is mostly started again
 * sooner.  */
static bool is_alone(void)
{
	return !link_is_connected() && clock_ns() - atomic_load(&lost_ns) >= TELL_WAIT_AFTER_NS;
}

/* With words_lock held.  */
static void wait_text(char *text, size_t size)
{
	const char *words = is_alone() ? "Waiting for the GPU: no controller answers" : "Waiting for the GPU";

	if (notice.place && notice.text[0] && link_is_connected())
		words = notice.text;
	snprintf(text, size, "%s. Interrupt the kernel to stop waiting.", words);
}

/* Tell the user of a wait again, since the controller has gone or come back.  */
static void tell_again(struct told_wait *told)
{
	bool alone = is_alone();

	if (told->displayed && alone != told->alone) {
		told->alone = alone;
		pthread_mutex_lock(&words_lock);
		display_changes();
		pthread_mutex_unlock(&words_lock);
	} else if (told->printed && alone && !told->alone) {
		told->alone = true;
		tell_person("Waiting for the GPU: no controller answers. Interrupt the kernel to stop waiting.");
	}
}

void link_tell_wait(uint64_t since_ns, struct told_wait *told)
{
	char text[WAIT_TEXT_SIZE];

	if (told->printed || told->displayed)
		return tell_again(told);
	if (clock_ns() - since_ns < TELL_WAIT_AFTER_NS)
		return;
	told->alone = is_alone();
	pthread_mutex_lock(&words_lock);
	wait_text(text, sizeof(text));
	told->displayed = is_displayed;
	if (is_displayed && !displayed_waits++)
		display_changes();
	pthread_mutex_unlock(&words_lock);
	if (told->displayed)
		return;
	told->printed = true;
	tell_person("%s", text);
}

void link_end_told_wait(struct told_wait *told)
{
	if (!told->displayed)
		return;
	told->displayed = false;
	pthread_mutex_lock(&words_lock);
	if (displayed_waits && !--displayed_waits)
		display_changes();
	pthread_mutex_unlock(&words_lock);
}

uint32_t link_next_display(uint32_t seen, uint64_t timeout_ns, char *text, size_t size)
{
	uint64_t since = clock_ns(), waited = 0;
	uint32_t version;

	pthread_mutex_lock(&words_lock);
	is_displayed = true;
	pthread_mutex_unlock(&words_lock);
	while (atomic_load(&display_version) == seen && waited < timeout_ns) {
		futex_wait(&display_version, seen, timeout_ns - waited);
		waited = clock_ns() - since;
	}
	pthread_mutex_lock(&words_lock);
	version = atomic_load(&display_version);
	text[0] = 0;
	if (displayed_waits)
		wait_text(text, size);
	pthread_mutex_unlock(&words_lock);
	return version;
}

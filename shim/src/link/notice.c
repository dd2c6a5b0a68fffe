/* What the controller last said to the person, read by the threads that wait.  */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "link/link.h"
#include "link/internal.h"

static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static struct affinode_notice notice;

void link_words_set(const struct affinode_notice *said)
{
	pthread_mutex_lock(&words_lock);
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

static const char *ordinal_ending(uint32_t n)
{
	if (n % 100 >= 11 && n % 100 <= 13)
		return "th";
	return n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
}

void link_place_text(char *text, size_t size)
{
	pthread_mutex_lock(&words_lock);
	if (notice.place && link_is_connected())
		snprintf(text, size, " (%u%s in line)", notice.place, ordinal_ending(notice.place));
	else
		text[0] = 0;
	pthread_mutex_unlock(&words_lock);
}

void link_words_reset_in_child(void)
{
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	memcpy(&words_lock, &fresh, sizeof(fresh));
	memset(&notice, 0, sizeof(notice));
}

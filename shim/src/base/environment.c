#define _GNU_SOURCE
#include "base/environment.h"

#include <stdlib.h>
#include <string.h>

static struct {
	const char *name;
	char *_Atomic value;
} noted[] = {
	{AFFINODE_ENV_FOLDER, NULL},	{AFFINODE_ENV_GRANT, NULL},  {AFFINODE_ENV_GRANT_FILE, NULL},
	{AFFINODE_ENV_KERNEL_ID, NULL}, {AFFINODE_ENV_SOCKET, NULL}, {"CUDA_MPS_PIPE_DIRECTORY", NULL},
};

const char *environment_now(const char *name)
{
	return secure_getenv(name);
}

/* It may be called again: in a child that was forked before the shim began, and where a warm kernel is taken. Strings of before are
 * not freed, since any thread may have one.  */
void environment_note(void)
{
	for (size_t i = 0; i < sizeof(noted) / sizeof(noted[0]); i++) {
		const char *value = environment_now(noted[i].name);

		noted[i].value = value ? strdup(value) : NULL;
	}
}

const char *environment_noted(const char *name)
{
	for (size_t i = 0; i < sizeof(noted) / sizeof(noted[0]); i++)
		if (strcmp(noted[i].name, name) == 0)
			return noted[i].value;
	return NULL;
}

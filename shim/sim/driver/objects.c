/* Type-stable memory for the objects behind handles.  */
#include "driver/objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KIND_MARK 0x53494d00u /* "SIM": tells a handle of ours from other memory */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *free_objects[OBJECT_KINDS];

void *object_new(enum object_kind kind, size_t size)
{
	struct object *object;

	pthread_mutex_lock(&lock);
	object = free_objects[kind];
	if (object)
		free_objects[kind] = object->next_free;
	pthread_mutex_unlock(&lock);
	if (object)
		memset(object, 0, size);
	else
		object = calloc(1, size);
	if (object)
		__atomic_store_n(&object->kind, KIND_MARK | kind, __ATOMIC_RELEASE);
	return object;
}

void object_kill(void *object)
{
	__atomic_store_n(&((struct object *)object)->kind, 0, __ATOMIC_RELEASE);
}

void object_free(enum object_kind kind, void *memory)
{
	struct object *object = memory;

	object_kill(object);
	pthread_mutex_lock(&lock);
	object->next_free = free_objects[kind];
	free_objects[kind] = object;
	pthread_mutex_unlock(&lock);
}

bool object_is(const void *handle, enum object_kind kind)
{
	const struct object *object = handle;

	if ((uintptr_t)handle < 4096 || (uintptr_t)handle % sizeof(void *))
		return false;
	return __atomic_load_n(&object->kind, __ATOMIC_ACQUIRE) == (KIND_MARK | kind);
}

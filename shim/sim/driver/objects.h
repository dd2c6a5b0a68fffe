/* What a CUDA handle points to. Memory of one kind of object is only ever reused for that kind, so that a stale handle
 * can be told from a live one without touching freed memory.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum object_kind {
	OBJECT_CONTEXT = 1,
	OBJECT_STREAM,
	OBJECT_EVENT,
	OBJECT_MODULE,
	OBJECT_FUNCTION,
	OBJECT_GRAPH,
	OBJECT_MEMORY,
	OBJECT_POOL,
	OBJECT_ARRAY,
	OBJECT_GREEN,
	OBJECT_KINDS,
};

/* First member of every object.  */
struct object {
	uint32_t kind; /* 0: not live */
	uint32_t reserved;
	struct object *next_free;
};

/* A zeroed live object, or NULL; each kind has one size.  */
void *object_new(enum object_kind kind, size_t size);
/* The handle is dead from now on; the memory stays until object_free().  */
void object_kill(void *object);
void object_free(enum object_kind kind, void *object);
/* Whether `handle` is a live object of that kind. NULL and small numbers are not.  */
bool object_is(const void *handle, enum object_kind kind);

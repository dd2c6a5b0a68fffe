/* Descriptions of what the shim is doing, put together from what its parts know.  */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* In a function of (char *text, size_t size, int at): appends at `at`, cut off where the room ends.  */
#define DESCRIBE(...) (at += snprintf(text + ((size_t)at < size ? (size_t)at : size), \
				      (size_t)at < size ? size - (size_t)at : 0, __VA_ARGS__))

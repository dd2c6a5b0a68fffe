#include "driver/entry_point.h"

#include <string.h>

#include "protocol.h"

enum { SHAPE_INT, SHAPE_WIDE };

#define ENTRY(name, CLASS, SHAPE, words, TRAITS) {#name, AFFINODE_CLASS_##CLASS, SHAPE_##SHAPE, TRAITS},
static const struct entry_point entry_points[] = {
#include "driver/entry_points.h"
};
#define ENTRY_POINTS (sizeof(entry_points) / sizeof(entry_points[0]))

/* Find the entry point whose name is the first `length` characters of `name`.  */
static const struct entry_point *find(const char *name, size_t length)
{
	size_t low = 0, high = ENTRY_POINTS;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const char *other = entry_points[middle].name;
		int order = strncmp(name, other, length);

		if (order == 0 && other[length] == 0)
			return &entry_points[middle];
		if (order <= 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

const struct entry_point *entry_point(const char *name)
{
	return find(name, strlen(name));
}

unsigned entry_point_traits(const char *name)
{
	const struct entry_point *entry = entry_point(name);

	/* "_v2", "_ptsz" or nothing: no name has another underscore.  */
	if (!entry)
		entry = find(name, strcspn(name, "_"));
	return entry ? entry->traits : 0;
}

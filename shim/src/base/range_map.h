/* What lies where: address ranges, sorted by where they begin. They do not overlap, except for one that the driver ended unseen.
 * The lock of the owner guards a map.  */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/growable.h"

struct range {
	uint64_t address;
	size_t size;
	void *thing;
};

struct range_map {
	struct range *ranges;
	size_t count, room;
};

/* Index of the first range that begins after `address`.  */
static inline size_t range_index_after(const struct range_map *map, uint64_t address)
{
	size_t low = 0, high = map->count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (map->ranges[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The first range that has a byte of these; NULL: none.  */
static inline struct range *range_first(const struct range_map *map, uint64_t address, uint64_t size)
{
	size_t at = range_index_after(map, address);

	if (at > 0 && address - map->ranges[at - 1].address < map->ranges[at - 1].size)
		return &map->ranges[at - 1];
	return at < map->count && map->ranges[at].address - address < size ? &map->ranges[at] : NULL;
}

/* The range that begins there; NULL: none does.  */
static inline struct range *range_beginning(const struct range_map *map, uint64_t address)
{
	size_t at = range_index_after(map, address);

	return at > 0 && map->ranges[at - 1].address == address ? &map->ranges[at - 1] : NULL;
}

/* 0, or -ENOMEM.  */
static inline int range_add(struct range_map *map, uint64_t address, size_t size, void *thing)
{
	size_t at = range_index_after(map, address);

	if (!array_has_room(map->ranges, map->count, map->room))
		return -ENOMEM;
	memmove(map->ranges + at + 1, map->ranges + at, (map->count - at) * sizeof(*map->ranges));
	map->ranges[at] = (struct range){address, size, thing};
	map->count++;
	return 0;
}

static inline void range_remove(struct range_map *map, struct range *range)
{
	size_t behind = map->ranges + map->count - (range + 1);

	memmove(range, range + 1, behind * sizeof(*range));
	map->count--;
}

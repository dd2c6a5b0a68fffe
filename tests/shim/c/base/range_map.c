/* A range map answers as a plain list of its ranges does, whatever is added and removed.  */
#include "base/range_map.h"
#include "harness.h"

#define PLACES 64 /* each of 16 bytes; a range begins at a place and never reaches the next */
#define PLACE 16

static struct range_map map;
static size_t sizes[PLACES]; /* 0: no range begins there */

static struct range *expected(uint64_t address, uint64_t size)
{
	for (size_t i = 0; i < map.count; i++) {
		struct range *range = &map.ranges[i];

		if (range->address < address + size && address < range->address + range->size)
			return range;
	}
	return NULL;
}

static void is_sorted(void)
{
	size_t count = 0;

	for (size_t i = 0; i < PLACES; i++)
		if (sizes[i]) {
			CHECK(count < map.count);
			CHECK_EQUAL(map.ranges[count].address, i * PLACE);
			CHECK_EQUAL(map.ranges[count].size, sizes[i]);
			CHECK(map.ranges[count].thing == &sizes[i]);
			count++;
		}
	CHECK_EQUAL(map.count, count);
}

int main(int argc, char **argv)
{
	uint64_t random;

	test_begin(argc, argv, 60);
	random = test_seed;
	CHECK(!range_first(&map, 0, UINT64_MAX));
	for (unsigned round = 0; round < 3000; round++) {
		size_t place = test_random(&random) % PLACES;
		uint64_t address = test_random(&random) % (PLACES * PLACE), size = 1 + test_random(&random) % (3 * PLACE);
		struct range *range = range_beginning(&map, place * PLACE);

		CHECK_EQUAL(range != NULL, sizes[place] != 0);
		if (range) {
			range_remove(&map, range);
			sizes[place] = 0;
		} else {
			sizes[place] = 1 + test_random(&random) % PLACE;
			CHECK_EQUAL(range_add(&map, place * PLACE, sizes[place], &sizes[place]), 0);
		}
		is_sorted();
		CHECK(range_first(&map, address, size) == expected(address, size));
		CHECK(range_first(&map, address, 1) == expected(address, 1));
	}
	free(map.ranges);
	return 0;
}

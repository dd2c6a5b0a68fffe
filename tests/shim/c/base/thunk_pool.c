/* A pool gives one thunk to each (pointer, what it does), passes all arguments on unchanged, and says when none is left.  */
#include "driver/thunk_pool.h"
#include "harness.h"

#ifndef SHIM_LINKED /* else it is in the program already */
#include "driver/thunk_pool.c"
#endif

static unsigned seen;

static W call_int(const struct thunk_target *target, INT_PARAMETERS)
{
	seen = target->what;
	return ((int_fn)target->real)(INT_ARGUMENTS);
}

static W call_wide(const struct thunk_target *target, WIDE_PARAMETERS)
{
	seen = target->what;
	return ((wide_fn)target->real)(WIDE_ARGUMENTS);
}

INT_POOL(TIMES_16)
WIDE_POOL(TIMES_16)

static W sum(INT_PARAMETERS)
{
	return a0 + 2 * a1 + 3 * a2 + 4 * a3 + 5 * a4 + 6 * a5 + 7 * a6 + 8 * a7 + 9 * a8 + 10 * a9 + 11 * a10;
}

struct large {
	uint64_t words[3];
};

static W mixed(W first, double second, struct large third, float fourth, W fifth)
{
	return first + (W)second + third.words[0] + third.words[2] + (W)fourth + fifth;
}

int main(int argc, char **argv)
{
	W (*int_thunk)(INT_PARAMETERS), (*wide_thunk)(W, double, struct large, float, W);

	test_begin(argc, argv, 30);
	int_thunk = (W(*)(INT_PARAMETERS))thunk_bind(&int_pool, (void *)sum, 7, "sum");
	CHECK_EQUAL(int_thunk(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), 506);
	CHECK_EQUAL(seen, 7);
	wide_thunk = (W(*)(W, double, struct large, float, W))thunk_bind(&wide_pool, (void *)mixed, 9, NULL);
	CHECK_EQUAL(wide_thunk(1, 20, (struct large){{300, 0, 4000}}, 50000, 600000), 654321);
	CHECK_EQUAL(seen, 9);

	CHECK(thunk_bind(&int_pool, (void *)sum, 7, NULL) == (void *)int_thunk);
	for (unsigned what = 8; what < 7 + 16; what++)
		CHECK(thunk_bind(&int_pool, (void *)sum, what, NULL) != (void *)int_thunk);
	CHECK(!thunk_bind(&int_pool, (void *)sum, 7 + 16, NULL));
	CHECK(thunk_bind(&int_pool, (void *)sum, 7, NULL) == (void *)int_thunk);
	return 0;
}

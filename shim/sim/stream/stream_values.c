/* cuStreamWriteValue and cuStreamWaitValue: a word of memory as a signal between streams, GPUs and the host.  */
#include <errno.h>
#include <time.h>

#include "driver/api.h"
#include "stream/capture.h"
#include "memory/ranges.h"

#define POLL_NS 50000
#define WAIT_GEQ 0
#define WAIT_EQ 1
#define WAIT_AND 2
#define WAIT_NOR 3

struct value_operation {
	struct operation operation;
	CUdeviceptr address;
	uint32_t value;
	unsigned condition;
};

static bool holds(const struct value_operation *wait, uint32_t seen)
{
	switch (wait->condition) {
	case WAIT_GEQ: /* cyclic, as the driver compares */
		return (int32_t)(seen - wait->value) >= 0;
	case WAIT_EQ:
		return seen == wait->value;
	case WAIT_AND:
		return (seen & wait->value) != 0;
	default:
		return ~(seen | wait->value) != 0;
	}
}

static CUresult run_wait(struct operation *operation, CUstream stream)
{
	struct value_operation *wait = (struct value_operation *)operation;
	struct timespec nap = {0, POLL_NS};

	while (!__atomic_load_n(&stream->context->abandoned, __ATOMIC_ACQUIRE)) {
		uint32_t seen = 0;
		bool valid;

		ranges_read();
		valid = ranges_accessible(stream->context, wait->address, sizeof(seen), false);
		if (valid)
			seen = __atomic_load_n((uint32_t *)wait->address, __ATOMIC_ACQUIRE);
		ranges_done();
		if (!valid)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		if (holds(wait, seen))
			break;
		nanosleep(&nap, NULL);
	}
	return CUDA_SUCCESS;
}

static CUresult run_write(struct operation *operation, CUstream stream)
{
	struct value_operation *write = (struct value_operation *)operation;
	bool valid;

	ranges_read();
	valid = ranges_accessible(stream->context, write->address, sizeof(write->value), true);
	if (valid)
		__atomic_store_n((uint32_t *)write->address, write->value, __ATOMIC_RELEASE);
	ranges_done();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult submit(const char *called, CUstream handle, const struct value_operation *what,
		       CUresult (*run)(struct operation *, CUstream))
{
	struct value_operation *operation;
	CUstream stream;
	bool valid;

	ENTER_CONTEXT(called, context);
	refused_ = stream_of(context, handle, &stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	ranges_read();
	valid = !(what->address % sizeof(what->value)) &&
		ranges_accessible(stream->context, what->address, sizeof(what->value), run == run_write);
	ranges_done();
	if (!valid || what->condition > WAIT_NOR)
		return CUDA_ERROR_INVALID_VALUE;
	operation = operation_new(sizeof(*operation), run);
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->address = what->address;
	operation->value = what->value;
	operation->condition = what->condition;
	return stream_submit(stream, &operation->operation, NULL);
}

#define VALUE_CALL(base, run)                                                                                         \
	SIM_API CUresult base##_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)          \
	{                                                                                                             \
		struct value_operation what = {.address = address, .value = value, .condition = flags};               \
                                                                                                                      \
		return submit(#base, stream, &what, run);                                                             \
	}                                                                                                             \
	SIM_API CUresult base##_v2_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)     \
	{                                                                                                             \
		return base##_v2(PER_THREAD(stream), address, value, flags);                                          \
	}

VALUE_CALL(cuStreamWaitValue32, run_wait)
VALUE_CALL(cuStreamWriteValue32, run_write)

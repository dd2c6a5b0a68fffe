/* How an exported function begins: initialised? faults? locked for a checkpoint? which context?  */
#pragma once

#include <stdbool.h>

#include "driver/sim_cuda.h"

#define SIM_API __attribute__((visibility("default")))

/* The _ptsz and _ptds variants: the default stream is the thread's own.  */
#define PER_THREAD(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

struct api_call {
	int cancel_state;
	bool entered;
};

CUresult api_enter(struct api_call *call, const char *name);
void api_leave(struct api_call *call);
/* Only whether the call may be made at all: for the checkpoint's own calls, which never wait at its gate.  */
CUresult api_allowed(const char *name);

/* Calls under way in this process, for the checkpoint that waits for them.  */
unsigned api_calls_in_flight(void);
/* Set while the executor runs the application's callback: such a thread may not call the driver.  */
void api_in_callback(bool inside);

/* The first line of every exported function that needs cuInit: counts the call, waits while the process is locked, keeps
 * the thread from being cancelled while it holds locks of ours.  */
#define ENTER(name)                                               \
	struct api_call call_ __attribute__((cleanup(api_leave))); \
	CUresult refused_ = api_enter(&call_, name);               \
	if (refused_ != CUDA_SUCCESS)                              \
	return refused_

/* The same, with the current context, which must be alive and without a sticky error.  */
#define ENTER_CONTEXT(name, context)                 \
	ENTER(name);                                 \
	CUcontext context;                           \
	refused_ = context_current(&context);        \
	if (refused_ != CUDA_SUCCESS)                \
	return refused_

/* Events: the fence of the work they were last recorded behind.  */
#pragma once

#include "stream/stream.h"

struct CUevent_st {
	struct object object;
	CUcontext context;
	unsigned flags;
	struct fence *fence; /* NULL: never recorded, or recorded in a capture */
	uint64_t capture_id; /* of that capture; 0: none */
};

/* cuStreamWaitEvent, capturing or not.  */
CUresult event_wait_in(CUstream stream, CUevent event);

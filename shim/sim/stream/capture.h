/* Stream capture: what a capturing stream forbids, and what that costs it. What is captured is dropped, and a graph is nothing but a
 * handle, which cannot be instantiated. A capture has one stream. Unless said otherwise nothing here is called under the work
 * lock.  */
#pragma once

#include "stream/event.h"

/* Under the work lock: take the operation over if the stream captures, or CUDA_ERROR_NOT_FOUND when it captures nothing and the
 * operation may be queued.  */
CUresult capture_operation(CUstream stream, struct operation *operation);
/* Under the work lock: the same for events.  */
CUresult capture_record_event(CUstream stream, CUevent event);
CUresult capture_wait_event(CUstream stream, CUevent event);

bool capture_active(CUstream stream);
/* What may not be done to a capturing stream (wait, ask), or to the legacy stream while a blocking stream captures:
 * the error, after the capture has been invalidated; else CUDA_SUCCESS.  */
CUresult capture_forbids(CUstream stream);
/* The same for what waits or asks, which is also unsafe (below).  */
CUresult capture_forbids_waiting(CUstream stream);
CUresult capture_forbids_event(CUevent event);
CUresult capture_forbids_context(CUcontext context);
/* A call that is not safe during a capture, as cuThreadExchangeStreamCaptureMode says.  */
CUresult capture_unsafe(void);
/* The stream is being destroyed.  */
void capture_abandon(CUstream stream);
/* So are all of a context's.  */
void captures_abandon(CUcontext context);

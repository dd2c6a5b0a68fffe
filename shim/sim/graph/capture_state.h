/* One capture, for capture.c (what is captured), capture_rules.c (what is forbidden meanwhile) and capture_api.c.  */
#ifndef SIM_CAPTURE_STATE_H
#define SIM_CAPTURE_STATE_H

#include "graph/capture.h"
#include "graph/graph.h"

struct capture {
	struct capture *next; /* of those that have not ended */
	unsigned references;  /* its origin's, and one for each event recorded in it */
	CUgraph graph; /* NULL once it ended */
	CUstream origin;
	int mode;
	int thread; /* that began it */
	bool invalidated;
	CUstream *streams; /* that take part; the origin is the first */
	unsigned stream_count;
};

/* All under the work lock.  */
struct capture *captures_open(void);
int capture_this_thread(void);
CUresult capture_begin(CUstream stream, int mode);
/* End it, however it stands; the graph is freed unless it was taken.  */
void capture_end(struct capture *capture);
/* A blocking stream of this context captures: the legacy stream may not be used.  */
struct capture *capture_of_blocking(CUcontext context);

#endif

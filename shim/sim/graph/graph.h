/* Graphs: operations and what each depends on. They change under the work lock.  */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "stream/stream.h"

struct CUgraphNode_st {
	struct object object;
	CUgraph graph;
	CUgraphNode next; /* in the order of making */
	struct operation *operation; /* NULL: an empty node */
	CUgraphNode *after;
	unsigned after_count;
	uint64_t mark; /* of a search: see graph_mark() */
};

struct CUgraph_st {
	struct object object;
	CUgraphNode first, last;
};

CUgraph graph_new(void);
void graph_free(CUgraph graph);
/* Add a node; takes over the reference of the operation, also when it fails (NULL).  */
CUgraphNode graph_add(CUgraph graph, struct operation *operation, const CUgraphNode *after, unsigned count);
/* Mark the nodes from which these can be reached, themselves included, with a new mark, which is returned.  */
uint64_t graph_mark(const CUgraphNode *nodes, unsigned count);
/* Take a node out, and it out of every other's dependencies.  */
void graph_remove(CUgraphNode node);

#endif

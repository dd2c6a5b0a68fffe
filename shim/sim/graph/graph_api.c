/* cuGraph*: building graphs node by node, and asking about them.  */
#include "copy/copy.h"
#include "driver/api.h"
#include "graph/capture.h"
#include "graph/graph.h"
#include "kernel/module.h"

SIM_API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	ENTER("cuGraphCreate");
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = graph_new();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphDestroy(CUgraph graph)
{
	ENTER("cuGraphDestroy");
	if (!object_is(graph, OBJECT_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	graph_free(graph);
	work_unlock();
	return CUDA_SUCCESS;
}

/* Fills at most *count; says how many there are when `nodes` is NULL, else how many it filled.  */
SIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	size_t found = 0;

	ENTER("cuGraphGetNodes");
	if (!object_is(graph, OBJECT_GRAPH) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	for (CUgraphNode node = graph->first; node; node = node->next) {
		if (nodes && found == *count)
			break;
		if (nodes)
			nodes[found] = node;
		found++;
	}
	work_unlock();
	*count = found;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphDestroyNode(CUgraphNode node)
{
	ENTER("cuGraphDestroyNode");
	if (!object_is(node, OBJECT_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	graph_remove(node);
	work_unlock();
	return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *made, CUgraph graph, const CUgraphNode *after, size_t count,
		    struct operation *operation)
{
	CUgraphNode node = NULL;
	bool valid = made && object_is(graph, OBJECT_GRAPH) && (!count || after);

	for (size_t i = 0; valid && i < count; i++)
		valid = object_is(after[i], OBJECT_NODE) && after[i]->graph == graph;
	if (!valid) {
		operation_release(operation);
		return CUDA_ERROR_INVALID_VALUE;
	}
	work_lock();
	node = graph_add(graph, operation, after, (unsigned)count);
	work_unlock();
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = node;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count)
{
	ENTER("cuGraphAddEmptyNode");
	return add(node, graph, after, count, NULL);
}

SIM_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
					 const CUDA_KERNEL_NODE_PARAMS *given)
{
	struct operation *operation;
	CUresult result;

	ENTER("cuGraphAddKernelNode");
	result = given ? launch_new(given, &operation) : CUDA_ERROR_INVALID_VALUE;
	return result == CUDA_SUCCESS ? add(node, graph, after, count, operation) : result;
}

SIM_API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
				      const CUDA_MEMSET_NODE_PARAMS *given, CUcontext context)
{
	struct operation *operation;
	CUresult result;

	ENTER("cuGraphAddMemsetNode");
	if (!given || (given->elementSize != 1 && given->elementSize != 2 && given->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (context)
		result = context_is(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	else
		result = context_current(&context);
	if (result != CUDA_SUCCESS)
		return result;
	operation = fill_operation_new(context, given);
	return operation ? add(node, graph, after, count, operation) : CUDA_ERROR_OUT_OF_MEMORY;
}

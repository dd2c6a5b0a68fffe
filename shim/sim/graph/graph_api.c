/* cuGraph*: building graphs node by node, and asking about them.  */
#include <stdlib.h>

#include "copy/copy.h"
#include "driver/api.h"
#include "graph/capture.h"
#include "graph/graph.h"
#include "kernel/module.h"
#include "stream/host_function.h"

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

SIM_API CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
	ENTER("cuGraphClone");
	if (!clone || !object_is(graph, OBJECT_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	*clone = graph_copy(graph);
	work_unlock();
	return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Fills at most *count; says how many there are when `nodes` is NULL, else how many it filled.  */
static CUresult list(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots)
{
	size_t found = 0;

	if (!object_is(graph, OBJECT_GRAPH) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	for (CUgraphNode node = graph->first; node; node = node->next) {
		if (roots && node->after_count)
			continue;
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

SIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER("cuGraphGetNodes");
	return list(graph, nodes, count, false);
}

SIM_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	ENTER("cuGraphGetRootNodes");
	return list(graph, nodes, count, true);
}

SIM_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	size_t found = 0;

	ENTER("cuGraphGetEdges");
	if (!object_is(graph, OBJECT_GRAPH) || !count || !from != !to)
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	for (CUgraphNode node = graph->first; node; node = node->next)
		for (unsigned i = 0; i < node->after_count && !(from && found == *count); i++, found++)
			if (from) {
				from[found] = node->after[i];
				to[found] = node;
				if (data)
					data[found] = (CUgraphEdgeData){0};
			}
	work_unlock();
	*count = found;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

SIM_API CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	ENTER("cuGraphNodeGetType");
	if (!object_is(node, OBJECT_NODE) || !type)
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->type;
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

static CUresult add(CUgraphNode *made, CUgraph graph, const CUgraphNode *after, size_t count, int type,
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
	node = graph_add(graph, type, operation, after, (unsigned)count);
	work_unlock();
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = node;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count)
{
	ENTER("cuGraphAddEmptyNode");
	return add(node, graph, after, count, CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

SIM_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
					 const CUDA_KERNEL_NODE_PARAMS *given)
{
	struct operation *operation;
	CUresult result;

	ENTER("cuGraphAddKernelNode");
	result = given ? launch_new(given, &operation) : CUDA_ERROR_INVALID_VALUE;
	return result == CUDA_SUCCESS ? add(node, graph, after, count, CU_GRAPH_NODE_TYPE_KERNEL, operation) : result;
}

SIM_API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
				    const CUDA_HOST_NODE_PARAMS *given)
{
	struct operation *operation;

	ENTER("cuGraphAddHostNode");
	if (!given || !given->fn)
		return CUDA_ERROR_INVALID_VALUE;
	operation = host_function_new(given);
	return operation ? add(node, graph, after, count, CU_GRAPH_NODE_TYPE_HOST, operation) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult context_or_current(CUcontext given, CUcontext *context)
{
	*context = given;
	if (given)
		return context_is(given) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	return context_current(context);
}

SIM_API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
				      const CUDA_MEMSET_NODE_PARAMS *given, CUcontext context)
{
	struct operation *operation;
	CUresult result;

	ENTER("cuGraphAddMemsetNode");
	if (!given || (given->elementSize != 1 && given->elementSize != 2 && given->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	result = context_or_current(context, &context);
	if (result != CUDA_SUCCESS)
		return result;
	operation = fill_operation_new(context, given);
	return operation ? add(node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET, operation) : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
				      const CUDA_MEMCPY3D *given, CUcontext context)
{
	struct operation *operation;
	struct copy shape;
	CUresult result;

	ENTER("cuGraphAddMemcpyNode");
	result = context_or_current(context, &context);
	if (result == CUDA_SUCCESS)
		result = copy_from_3d(context, given, false, &shape);
	if (result != CUDA_SUCCESS)
		return result;
	operation = copy_operation_new(&shape);
	return operation ? add(node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMCPY, operation) : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
					  CUgraph child)
{
	CUgraph copy;
	CUresult result;

	ENTER("cuGraphAddChildGraphNode");
	if (!object_is(child, OBJECT_GRAPH) || child == graph)
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	copy = graph_copy(child);
	work_unlock();
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = add(node, graph, after, count, CU_GRAPH_NODE_TYPE_GRAPH, NULL);
	if (result == CUDA_SUCCESS)
		(*node)->child = copy;
	else
		graph_free(copy);
	return result;
}

SIM_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
	struct launch *launch;

	ENTER("cuGraphKernelNodeGetParams");
	if (!object_is(node, OBJECT_NODE) || node->type != CU_GRAPH_NODE_TYPE_KERNEL || !out)
		return CUDA_ERROR_INVALID_VALUE;
	launch = (struct launch *)node->operation;
	*out = launch->shape;
	out->func = launch->function;
	out->kernelParams = launch->parameter_addresses;
	out->extra = NULL;
	return CUDA_SUCCESS;
}

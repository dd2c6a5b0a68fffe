/* Instantiated graphs: the operations in an order that respects every dependency, run one after the other.  */
#include <stdlib.h>

#include "driver/api.h"
#include "driver/streams_default.h"
#include "graph/capture.h"
#include "graph/graph.h"

struct CUgraphExec_st {
	struct object object;
	struct operation **steps;
	unsigned count;
};

struct graph_launch {
	struct operation operation;
	unsigned count;
	struct operation *steps[];
};

static bool append(CUgraphExec exec, struct operation *operation)
{
	struct operation **steps = realloc(exec->steps, (exec->count + 1) * sizeof(*steps));

	if (!steps)
		return false;
	exec->steps = steps;
	steps[exec->count++] = operation_hold(operation);
	return true;
}

/* Depth first: what a node depends on comes before it. A node with today's mark is done.  */
static CUresult add_node(CUgraphExec exec, CUgraphNode node, uint64_t mark)
{
	CUresult result = CUDA_SUCCESS;

	if (node->mark == mark)
		return CUDA_SUCCESS;
	node->mark = mark;
	for (unsigned i = 0; i < node->after_count && result == CUDA_SUCCESS; i++)
		result = add_node(exec, node->after[i], mark);
	if (result == CUDA_SUCCESS && node->operation && !append(exec, node->operation))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

static CUresult add_graph(CUgraphExec exec, CUgraph graph)
{
	uint64_t mark = graph_mark(NULL, 0);
	CUresult result = CUDA_SUCCESS;

	for (CUgraphNode node = graph->first; node && result == CUDA_SUCCESS; node = node->next)
		result = add_node(exec, node, mark);
	return result;
}

static void drop_steps(CUgraphExec exec)
{
	for (unsigned i = 0; i < exec->count; i++)
		operation_release(exec->steps[i]);
	free(exec->steps);
}

static CUresult instantiate(CUgraphExec *made, CUgraph graph)
{
	CUgraphExec exec;
	CUresult result;

	if (!made || !object_is(graph, OBJECT_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	exec = object_new(OBJECT_EXEC, sizeof(*exec));
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	work_lock();
	result = add_graph(exec, graph);
	work_unlock();
	if (result == CUDA_SUCCESS) {
		*made = exec;
	} else {
		drop_steps(exec);
		object_free(OBJECT_EXEC, exec);
	}
	return result;
}

SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTER_CONTEXT("cuGraphInstantiate", context);
	(void)flags;
	return instantiate(exec, graph);
}

SIM_API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	ENTER_CONTEXT("cuGraphInstantiate", context);
	if (error_node)
		*error_node = NULL;
	if (log && size)
		*log = '\0';
	return instantiate(exec, graph);
}

SIM_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	ENTER("cuGraphExecDestroy");
	if (!object_is(exec, OBJECT_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	drop_steps(exec); /* launches that still run hold their own references */
	object_free(OBJECT_EXEC, exec);
	work_unlock();
	return CUDA_SUCCESS;
}

static CUresult run(struct operation *operation, CUstream stream)
{
	struct graph_launch *launch = (struct graph_launch *)operation;
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < launch->count && result == CUDA_SUCCESS; i++)
		result = operation_execute(launch->steps[i], stream);
	return result;
}

static void drop(struct operation *operation)
{
	struct graph_launch *launch = (struct graph_launch *)operation;

	for (unsigned i = 0; i < launch->count; i++)
		operation_release(launch->steps[i]);
}

static CUresult launch(CUgraphExec exec, CUstream handle)
{
	struct graph_launch *operation;
	CUstream stream;

	ENTER_CONTEXT("cuGraphLaunch", context);
	if (!object_is(exec, OBJECT_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = stream_of(context, handle, &stream);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	work_lock();
	operation = operation_new(sizeof(*operation) + exec->count * sizeof(*operation->steps), run);
	if (operation) {
		operation->operation.drop = drop;
		operation->count = exec->count;
		for (unsigned i = 0; i < exec->count; i++)
			operation->steps[i] = operation_hold(exec->steps[i]);
	}
	work_unlock();
	return operation ? stream_submit(stream, &operation->operation, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream);
}

SIM_API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return launch(exec, PER_THREAD(stream));
}

SIM_API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
	CUstream stream;

	ENTER_CONTEXT("cuGraphUpload", context);
	return object_is(exec, OBJECT_EXEC) ? stream_of(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphUpload(exec, PER_THREAD(stream));
}

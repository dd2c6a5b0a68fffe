/* Instantiated graphs: the operations in an order that respects every dependency, run one after the other.  */
#include <stdlib.h>
#include <string.h>

#include "driver/api.h"
#include "driver/streams_default.h"
#include "graph/capture.h"
#include "graph/graph.h"
#include "kernel/module.h"

struct step {
	CUgraphNode node; /* that it came from; only compared */
	int type;
	struct operation *operation;
};

struct CUgraphExec_st {
	struct object object;
	struct step *steps;
	unsigned count;
};

struct graph_launch {
	struct operation operation;
	unsigned count;
	struct operation *steps[];
};

static bool append(CUgraphExec exec, CUgraphNode node)
{
	struct step *steps = realloc(exec->steps, (exec->count + 1) * sizeof(*steps));

	if (!steps)
		return false;
	exec->steps = steps;
	steps[exec->count].node = node;
	steps[exec->count].type = node->type;
	steps[exec->count++].operation = operation_hold(node->operation);
	return true;
}

static CUresult add_graph(CUgraphExec exec, CUgraph graph);

/* Depth first: what a node depends on comes before it. A node with today's mark is done.  */
static CUresult add_node(CUgraphExec exec, CUgraphNode node, uint64_t mark)
{
	CUresult result = CUDA_SUCCESS;

	if (node->mark == mark)
		return CUDA_SUCCESS;
	node->mark = mark;
	for (unsigned i = 0; i < node->after_count && result == CUDA_SUCCESS; i++)
		result = add_node(exec, node->after[i], mark);
	if (result == CUDA_SUCCESS && node->child)
		result = add_graph(exec, node->child);
	if (result == CUDA_SUCCESS && node->operation && !append(exec, node))
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
		operation_release(exec->steps[i].operation);
	free(exec->steps);
	exec->steps = NULL;
	exec->count = 0;
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

SIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	ENTER_CONTEXT("cuGraphInstantiateWithParams", context);
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	parameters->hErrNode_out = NULL;
	refused_ = instantiate(exec, graph);
	parameters->result_out = refused_ != CUDA_SUCCESS;
	return refused_;
}

SIM_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
						   CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return cuGraphInstantiateWithParams(exec, graph, parameters);
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
	operation = operation_new(sizeof(*operation) + exec->count * sizeof(*operation->steps),
				  CU_GRAPH_NODE_TYPE_GRAPH, run);
	if (operation) {
		operation->operation.drop = drop;
		operation->count = exec->count;
		for (unsigned i = 0; i < exec->count; i++)
			operation->steps[i] = operation_hold(exec->steps[i].operation);
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

/* The same steps with new parameters; anything else is a change of topology.  */
SIM_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result)
{
	struct CUgraphExec_st next = {.count = 0};
	bool same;

	ENTER_CONTEXT("cuGraphExecUpdate", context);
	if (!object_is(exec, OBJECT_EXEC) || !object_is(graph, OBJECT_GRAPH) || !result)
		return CUDA_ERROR_INVALID_VALUE;
	work_lock();
	refused_ = add_graph(&next, graph);
	same = refused_ == CUDA_SUCCESS && next.count == exec->count;
	for (unsigned i = 0; same && i < next.count; i++)
		same = next.steps[i].type == exec->steps[i].type;
	if (same) {
		struct step *steps = exec->steps;

		exec->steps = next.steps;
		next.steps = steps;
	}
	drop_steps(&next);
	work_unlock();
	memset(result, 0, sizeof(*result));
	result->result = same ? 0 : 2; /* CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED */
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

SIM_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *given)
{
	struct operation *operation;

	ENTER_CONTEXT("cuGraphExecKernelNodeSetParams", context);
	if (!object_is(exec, OBJECT_EXEC) || !given)
		return CUDA_ERROR_INVALID_VALUE;
	refused_ = launch_new(given, &operation);
	if (refused_ != CUDA_SUCCESS)
		return refused_;
	refused_ = CUDA_ERROR_INVALID_VALUE;
	work_lock();
	for (unsigned i = 0; i < exec->count; i++)
		if (exec->steps[i].node == node && exec->steps[i].type == CU_GRAPH_NODE_TYPE_KERNEL) {
			struct operation *before = exec->steps[i].operation;

			exec->steps[i].operation = operation;
			operation = before;
			refused_ = CUDA_SUCCESS;
			break;
		}
	operation_release(operation);
	work_unlock();
	return refused_;
}

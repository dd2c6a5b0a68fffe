/* Making and walking graphs.  */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_new(void)
{
	return object_new(OBJECT_GRAPH, sizeof(struct CUgraph_st));
}

static void free_node(CUgraphNode node)
{
	operation_release(node->operation);
	free(node->after);
	object_free(OBJECT_NODE, node);
}

void graph_free(CUgraph graph)
{
	while (graph->first) {
		CUgraphNode node = graph->first;

		graph->first = node->next;
		free_node(node);
	}
	object_free(OBJECT_GRAPH, graph);
}

CUgraphNode graph_add(CUgraph graph, struct operation *operation, const CUgraphNode *after, unsigned count)
{
	CUgraphNode node = object_new(OBJECT_NODE, sizeof(*node));

	if (node && count) {
		node->after = malloc(count * sizeof(*after));
		if (node->after) {
			memcpy(node->after, after, count * sizeof(*after));
		} else {
			object_free(OBJECT_NODE, node);
			node = NULL;
		}
	}
	if (!node) {
		operation_release(operation);
		return NULL;
	}
	node->graph = graph;
	node->operation = operation;
	node->after_count = count;
	if (graph->last)
		graph->last->next = node;
	else
		graph->first = node;
	graph->last = node;
	return node;
}

static void mark(CUgraphNode node, uint64_t value)
{
	if (node->mark == value)
		return;
	node->mark = value;
	for (unsigned i = 0; i < node->after_count; i++)
		mark(node->after[i], value);
}

uint64_t graph_mark(const CUgraphNode *nodes, unsigned count)
{
	static uint64_t last;

	last++;
	for (unsigned i = 0; i < count; i++)
		mark(nodes[i], last);
	return last;
}

static void forget(CUgraphNode node, CUgraphNode gone)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < node->after_count; i++)
		if (node->after[i] != gone)
			node->after[kept++] = node->after[i];
	node->after_count = kept;
}

void graph_remove(CUgraphNode node)
{
	CUgraph graph = node->graph;
	CUgraphNode previous = NULL;

	for (CUgraphNode other = graph->first; other; other = other->next) {
		if (other->next == node)
			previous = other;
		forget(other, node);
	}
	if (previous)
		previous->next = node->next;
	else
		graph->first = node->next;
	if (graph->last == node)
		graph->last = previous;
	free_node(node);
}

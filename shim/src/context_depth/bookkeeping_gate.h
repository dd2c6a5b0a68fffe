/* The second gate, for calls that never wait at memory depth: books on the host, polls, frees. At context depth the
 * driver itself would hold them, unseen and uncancellable, so they are stopped before it: answered from shadows
 * (shadow.h), put off (deferred_calls.h), or kept waiting as calls that want the GPU.
 *
 * Only where context depth is asked for; elsewhere no wrapper of this kind is handed out. Unlike the first gate it
 * is passed with a full fence: it is not on the way of launches.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "driver/cuda_types.h"
#include "gate/second_gate.h"
#include "protocol.h"

struct slot;
struct books_pass {
	struct slot *slot;
};

/* Come in, so that the process stays on the GPU until books_leave; false: it is off the GPU. An unwound frame does not
 * leave: the thread then counts as inside until it ends, and the process stays at memory depth.  */
bool books_enter(struct books_pass *pass);
void books_leave(struct books_pass *pass);

/* Wait until the process is on the GPU: CUDA_SUCCESS, or what the call is to return instead.  */
CUresult books_wait(void);

/* The same for a call that an interrupt may end with an error.  */
CUresult books_wait_or_give_up(void);

/* Close and wait until no thread is inside, `drain_ns` at most: 0, or -EBUSY and open again.  */
int books_close(uint64_t drain_ns);
void books_open(void);

void books_begin_again(void);

/* Questions that application threads put to the controller through the link thread, and wait for: room for an
 * allocation, and what the user asks by a magic.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/cuda_types.h"
#include "gpu/contexts.h"
#include "protocol.h"
#include "state/controller.h"

/* One call's wait for room, over all its attempts; begins as zeros.  */
struct room_wait {
	unsigned promises; /* of room, after each of which the GPU was full again */
	uint64_t since_ns;
	uint32_t controllers;
	uint64_t alone_ns; /* without a controller, since the last */
	struct told_wait told;
	bool said_alone;
	unsigned refused; /* by another library, while the GPU had room */
};

/* An allocation met a full GPU: ask for room and wait, outside the gate. CUDA_SUCCESS: try again;
 * CUDA_ERROR_OUT_OF_MEMORY: there will be none; else what the call is to return.  */
CUresult ask_for_room(const struct device *device, uint64_t bytes, struct room_wait *wait);

/* Put a request and wait: an affinode_status, or -ENOTCONN, -ETIMEDOUT, -EBUSY (too many at once).  */
int ask_controller(uint32_t kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size);

/* For the link thread. A message yet unsent, in order; `begin` starts over for a new controller.  */
struct ask_message {
	bool is_room;
	union {
		struct affinode_notify notify;
		struct affinode_request request;
	};
};
bool asks_next_message(struct ask_message *message);
void asks_begin_again(void);
void asks_fail_requests(void);

void asks_answer_room(uint32_t number, bool granted);
void asks_answer_request(uint32_t number, int status, const char *text);
void asks_wake_all(void);

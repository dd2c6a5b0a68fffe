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
	unsigned promises; /* how often room was granted and the GPU was full again */
	unsigned locked;   /* how often it was granted and another process had the GPU's lock */
	uint64_t since_ns;
	uint32_t controllers;
	uint64_t alone_ns; /* how long no controller has been there, since the last one */
	struct told_wait told;
	bool said_alone;
	unsigned refused; /* how often another library refused although the GPU had room */
};

/* Ask for room for an allocation that met a full GPU, and wait outside the gate. Return CUDA_SUCCESS to try again,
 * CUDA_ERROR_OUT_OF_MEMORY if there will be no room, or else what the call is to return.  */
CUresult ask_for_room(const struct device *device, uint64_t bytes, struct room_wait *wait);

/* Send a request and wait for its answer. Return an affinode_status, or -ENOTCONN, -ETIMEDOUT, or -EBUSY for too many at once.  */
int ask_controller(uint32_t kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size);

/* For the link's thread: take the next message that was not sent yet, if there is one; send all again to a new controller; and let
 * all requests fail, since the controller is gone.  */
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

/* What the magics call by ctypes, and any program may: see kernel/startup.py.  */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gate/gate.h"
#include "link/link.h"
#include "link/requests.h"
#include "process/diagnostics.h"
#include "state/controller.h"
#include "state/depth.h"
#include "state/shim_state.h"
#include "state/status_page.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int affinode_version(char *text, size_t size);
EXPORT int affinode_state(void);
EXPORT int affinode_has_context_depth(void);
EXPORT int affinode_request(int kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size);
EXPORT int affinode_status_text(char *text, size_t size);
EXPORT int affinode_page_copy(void *buffer, size_t size);
EXPORT void affinode_dying(void);
EXPORT void affinode_cell_began(void);
EXPORT uint32_t affinode_next_display(uint32_t seen, uint64_t timeout_ns, char *text, size_t size);
EXPORT int affinode_describe(char *text, size_t size);

int affinode_version(char *text, size_t size)
{
	if (!text || !size)
		return -EINVAL;
	snprintf(text, size, "%s", AFFINODE_SHIM_VERSION);
	return 0;
}

/* Whether it was built in; asked for it may be or not.  */
int affinode_has_context_depth(void)
{
	return AFFINODE_CONTEXT_DEPTH;
}

int affinode_state(void)
{
	return (int)shim_state();
}

int affinode_request(int kind, uint64_t argument, uint64_t timeout_ns, char *text, size_t size)
{
	if (text && size)
		text[0] = 0;
	if (kind < AFFINODE_REQUEST_PARK || kind > AFFINODE_REQUEST_STATUS)
		return -EINVAL;
	if (!shim_is_on())
		return -ENODEV;
	return ask_controller((uint32_t)kind, argument, timeout_ns, text, size);
}

int affinode_status_text(char *text, size_t size)
{
	if (!text || !size)
		return -EINVAL;
	link_notice_text(text, size);
	return 0;
}

int affinode_page_copy(void *buffer, size_t size)
{
	return buffer ? (int)page_copy(buffer, size) : -EINVAL;
}

void affinode_dying(void)
{
	shim_set_dying();
}

/* An interrupt is for the cell it interrupted. The controller says so too (CANCEL_END), but by way of the server, and
 * the next cell may reach the GPU before that.  */
void affinode_cell_began(void)
{
	gate_cancel_end();
}

uint32_t affinode_next_display(uint32_t seen, uint64_t timeout_ns, char *text, size_t size)
{
	return text && size ? link_next_display(seen, timeout_ns, text, size) : seen;
}

/* Its state, the gates, the calls inside and the thread that holds the mover, in lines: where does it hang?  */
int affinode_describe(char *text, size_t size)
{
	return text && size ? describe(text, size) : -EINVAL;
}

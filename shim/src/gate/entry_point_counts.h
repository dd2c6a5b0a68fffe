/* Calls by entry point, counted only while that is asked for. When it is not, the gate's way in is the same as without
 * it: the gate's word sends calls the slow way only while they are counted.  */
#pragma once

#include <stdint.h>

#include "protocol.h"

/* Count for `duration_ns` from now, 60 s at most; 0: no more. By the link thread.  */
void entry_points_count_for(uint64_t duration_ns);

/* Stop when the time is over; those called most, into the page that is being written. By the link thread.  */
void entry_points_sample(struct affinode_page *page, uint64_t now);

/* `name` lives as long as the process; an "on_" before it, as hooks have, is left out. What has none is not counted.  */
void entry_point_called(const char *name);

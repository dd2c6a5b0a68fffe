/* The way out, from the survey's end to its beginning: a window of what was copied is looked at once more and released while the
 * next one is being copied. In an exchange all goes so, and another process can have the room meanwhile. In other parks only the
 * beginning does: what was copied beside the application is released meanwhile.  */
#pragma once

#include "mover/internal.h"
#include "mover/copying/move_plan.h"

/* How many of the first items are left for stream_out to copy: as many as are copied in the time that releasing the others
 * takes. 0 where the park is not faster for it.  */
size_t stream_leave_some(const struct survey *survey);

/* At the closed gate, all digested, and all but the first `uncopied` items copied, with host memory for these, or for some of them if
 * it is handed over. True: some memory is released, and the process is parked; the outcome says so if it is not all of it.
 * False: none is, and the outcome says why.  */
bool stream_out(struct moved *moved, struct survey *survey, size_t uncopied);

/* Host memory beside a move: what is kept for the next park, given back where others need it, and what the controller handed
 * over, made ready ahead. By the mover, with the right to work.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Give memory back down to `bytes`: copies first of all that are of no use to a resume, those of resident blocks.
 * False: not all of it, since a context is being ended; to be tried again.  */
bool retained_trim(uint64_t bytes);

/* Of a parked process: give back what its contents took that were freed since, also while it is off the GPU. True: some.  */
bool retained_give_back_freed(void);

/* Host memory in all, contents included: slabs, and what is pinned to copy by. Callable by any thread.  */
uint64_t retained_bytes(void);

/* The machine, or a control group, is running short.  */
bool retained_memory_is_needed(void);

/* Unmap lots that were given back and have to go.  */
void retained_forget_lots(void);

/* Register what the controller handed over; asked between slabs, `stop` ends it.  */
void retained_prepare_lots(bool (*stop)(void));

/* Of a parked process: register some of the host memory of its contents, so that they go back at the link's speed. `stop` is asked
 * between slabs. False: there is no more, or memory is short.  */
bool retained_register_contents(bool (*stop)(void));

/* What other files ask about a mapping's handle; the tables are held.  */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "ranges.h"

uint64_t vmm_handle_size(const struct range *range);
int vmm_handle_types(const struct range *range);

#endif

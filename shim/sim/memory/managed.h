/* Whether the process has managed memory, which the driver's checkpoint refuses.  */
#ifndef SIM_MANAGED_H
#define SIM_MANAGED_H

#include <stdbool.h>

bool managed_exists(void);

#endif

/* Whether the process has managed memory, which the driver's checkpoint refuses.  */
#pragma once

#include <stdbool.h>

bool managed_exists(void);

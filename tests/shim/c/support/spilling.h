/* A folder to spill to, and the process's own file in it.  */
#pragma once

#include <stdbool.h>

#include "harness.h"

#define ALL UINT64_MAX

/* On a disk, for this program alone; removed at its end.  */
extern char spill_folder[];
void spilling_begin(void);

/* Of this process; -1: it has none.  */
int spill_descriptor(void);
/* Files that have a name in the folder.  */
unsigned spill_names(void);

/* Park, and write all to disk.  */
struct affinode_reply spill_all(void);
void park_to_disk(void);

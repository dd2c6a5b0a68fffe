/* By address only, in a file of its own: the real declarations are elsewhere. What the simulated driver lacks is NULL:
 * a weak symbol, and protected so that no other library that is loaded, the shim above all, is taken for it.  */
#include "driver/entry_table.h"

#define KNOWN(symbol) extern char symbol[] __attribute__((weak, visibility("protected")));
#define ENTRY(name, since, symbol) KNOWN(symbol) KNOWN(symbol##_ptds) KNOWN(symbol##_ptsz)
#include "driver/entries.h"
#undef ENTRY

const struct entry entries[] = {
#define ENTRY(name, since, symbol) {#name, since, symbol, {symbol##_ptds, symbol##_ptsz}},
#include "driver/entries.h"
};

const unsigned entry_count = sizeof(entries) / sizeof(*entries);

/* The addresses of all entry points. By address only, in a file of its own: the real declarations are elsewhere.  */
#include "driver/entry_table.h"

#define ENTRY(name, since, symbol, per_thread) extern char symbol[], per_thread[];
#include "driver/entries.h"

const struct entry entries[] = {
#define ENTRY(name, since, symbol, per_thread) {#name, since, symbol, per_thread},
#include "driver/entries.h"
};

const unsigned entry_count = sizeof(entries) / sizeof(*entries);

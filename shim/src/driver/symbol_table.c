/* Finds a function in the symbol table of a loaded object: the way to dlsym in a libc that has no dlvsym.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

#include "driver/symbol_finder.h"

struct symbol_table {
	const char *base;
	const ElfW(Sym) * symbols;
	const char *names;
	const uint32_t *hash; /* DT_GNU_HASH */
};

/* glibc writes addresses into a dynamic section that hold in the process, musl leaves the file's.  */
static const void *in_process(const char *base, ElfW(Addr) address)
{
	return address < (ElfW(Addr))base ? base + address : (const void *)address;
}

static bool read_dynamic(const ElfW(Dyn) * entry, struct symbol_table *table)
{
	for (; entry->d_tag != DT_NULL; entry++) {
		const void *there = in_process(table->base, entry->d_un.d_ptr);

		if (entry->d_tag == DT_SYMTAB)
			table->symbols = there;
		else if (entry->d_tag == DT_STRTAB)
			table->names = there;
		else if (entry->d_tag == DT_GNU_HASH)
			table->hash = there;
	}
	return table->symbols && table->names && table->hash;
}

static bool table_of(const void *address, struct symbol_table *table)
{
	const ElfW(Ehdr) * header;
	const ElfW(Phdr) * segments;
	Dl_info info;

	if (!dladdr(address, &info))
		return false;
	table->base = info.dli_fbase;
	header = info.dli_fbase;
	segments = (const void *)(table->base + header->e_phoff);
	for (int i = 0; i < header->e_phnum; i++)
		if (segments[i].p_type == PT_DYNAMIC)
			return read_dynamic((const void *)(table->base + segments[i].p_vaddr), table);
	return false;
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

/* The table's layout: buckets, first symbol with a hash, words of the Bloom filter, its shift; filter, buckets, then a hash for
 * each symbol, whose lowest bit ends a bucket's chain.  */
void *symbol_beside(const void *address, const char *name)
{
	struct symbol_table table = {0};
	const uint32_t *buckets, *chain;
	uint32_t wanted = gnu_hash(name), at;

	if (!table_of(address, &table) || !table.hash[0])
		return NULL;
	buckets = table.hash + 4 + table.hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	chain = buckets + table.hash[0];
	at = buckets[wanted % table.hash[0]];
	for (; at >= table.hash[1]; at++) {
		uint32_t hash = chain[at - table.hash[1]];
		const ElfW(Sym) *symbol = &table.symbols[at];

		if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF &&
		    strcmp(table.names + symbol->st_name, name) == 0)
			return (void *)(table.base + symbol->st_value);
		if (hash & 1)
			break;
	}
	return NULL;
}

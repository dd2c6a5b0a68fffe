/* A program of another libc: looks symbols up, in the process and in a library that it loads.  */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
	void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
	int (*answer)(void) = NULL;

	if (library)
		*(void **)&answer = dlsym(library, "answer");
	printf("%d %d %d\n", dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc, dlsym(RTLD_NEXT, "nothing") == NULL,
	       answer ? answer() : 0);
	return 0;
}

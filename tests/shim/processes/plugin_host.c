/* A program that knows nothing of CUDA, and a library that does, loaded for itself alone.  */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*run)(void);

	if (!plugin) {
		fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "which library?");
		return 1;
	}
	*(void **)&run = dlsym(plugin, "run");
	return run();
}

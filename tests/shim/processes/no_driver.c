/* What a library is told that has no driver behind it, or one without a function.  */
#include <stdio.h>

int cuInit(unsigned int);
int cuParamSetSize(void *, unsigned int);
int cuGetErrorName(int, const char **);
int cuGetErrorString(int, const char **);

static const char *text(const char *given)
{
	return given ? given : "nothing";
}

int main(void)
{
	static const int errors[] = {0, 2, 100, -1};

	printf("cuInit: %d\n", cuInit(0));
	printf("cuParamSetSize: %d\n", cuParamSetSize(NULL, 4));
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		const char *name = "unchanged", *words = "unchanged";
		int named = cuGetErrorName(errors[i], &name), told = cuGetErrorString(errors[i], &words);

		printf("%d: %d %s, %d %s\n", errors[i], named, text(name), told, text(words));
	}
	printf("nowhere to write: %d, %d\n", cuGetErrorName(100, NULL), cuGetErrorString(100, NULL));
	return 0;
}

#include "base/reasons.h"

const char *reason_words(enum reason reason)
{
	static const char *const words[] = {
		"",
#define X(name, words) words,
		REASONS(X)
	};

	return words[reason];
}

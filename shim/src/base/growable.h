/* An array that grows: one more element fits after it, or there is no memory.  */
#pragma once

#include <stdbool.h>
#include <stdlib.h>

/* Whether `array`, with `count` elements in use and room for `size`, has room for another. Moved to twice the room where it is
 * full; as it was where there is no memory. `array` and `size` are variables.  */
#define array_has_room(array, count, size)                                                                 \
	({                                                                                                 \
		size_t more_ = (size) ? 2 * (size) : 16;                                                   \
		void *moved_ = (count) < (size) ? NULL : realloc((array), more_ * sizeof(*(array)));       \
                                                                                                           \
		if (moved_) {                                                                              \
			(array) = moved_;                                                                  \
			(size) = more_;                                                                    \
		}                                                                                          \
		(count) < (size);                                                                          \
	})

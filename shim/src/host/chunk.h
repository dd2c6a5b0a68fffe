/* The unit in which memory is looked at and moved.  */
#pragma once

#include <stdint.h>

/* The granularity of cuMemCreate on every GPU so far, and a huge page of the host.  */
#define CHUNK_BYTES (2ull << 20)

/* Keyed, of 256 bits: digest.h.  */
struct digest {
	uint32_t words[8];
};

/* The controller's end of the link: what a test says to the shim, what the shim answers, and its page.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "protocol.h"

/* Listen in that folder; `test_begin` does it.  */
void controller_begin(const char *folder);
/* One shim at a time; `controller_accept` takes the next and welcomes it.  */
void controller_accept(void);
void controller_accept_silently(void); /* without a welcome */
void controller_welcome(void);
void controller_drop(void);       /* close the link */
void controller_kill(void);       /* and the listener: its socket is left */
void controller_stop(void);       /* as it ends by itself: its socket goes */
void controller_listen_again(void); /* the next one */
void controller_start_again(void); /* … which takes the shim */
/* Put the link to the shim that was accepted last aside, to take another; and take one again. Heartbeats keep one that is aside.  */
struct controller_aside *controller_put_aside(void);
void controller_take_again(struct controller_aside *aside);
int controller_fd(void);
struct affinode_hello controller_hello(void); /* of the shim that was accepted last */
void controller_send(uint16_t type, void *message, uint32_t size, uint32_t epoch);
uint32_t controller_command(uint32_t command, uint64_t argument);
void controller_answer_room(uint32_t request, bool granted);
/* Write `bytes` at most of what is parked to disk, below the folder.  */
uint32_t controller_spill(uint64_t bytes, const char *folder);
/* Share what is parked with the user's other processes, by packs below the folder.  */
uint32_t controller_share(const char *folder, uint64_t number);
/* Write all that is parked to the image in that folder, and take the context off the GPU.  */
uint32_t controller_into_image(const char *folder);
/* Resume on the GPU with that UUID, as NVML writes it; `more`: other move flags.  */
uint32_t controller_resume_on(const char *gpu, uint64_t more);
struct affinode_reply controller_reply(uint32_t epoch);
bool controller_replied(uint32_t epoch);
/* Of a move in two steps: wait until it is prepared; false: it ended before. Then, or sooner, decide.  */
bool controller_prepared(uint32_t epoch);
bool controller_is_prepared(uint32_t epoch);
/* What a prepared park says that it lacks of host memory, in bytes.  */
uint64_t controller_lacks(uint32_t epoch);
void controller_decide(uint32_t epoch, bool commit);
/* Hand over a lot of host memory (a multiple of 32 MiB); its number.  */
uint32_t controller_lend(uint64_t bytes);
/* A lot whose memory the test has too; and have the shim unmap it, if it was given back.  */
uint32_t controller_lend_file(int fd, uint64_t bytes);
void controller_forget(int fd);
/* The moves that are tried at each of their steps: at once, part after part, and where host memory is handed over.  */
struct move {
	const char *name;
	uint32_t command;
	uint64_t how;
	bool of_rest; /* of a process that is parked in part */
};
enum { MOVES = 7 };
/* A resume that hands its host memory over, or a park that is handed some.  */
#define HANDS_OVER (AFFINODE_MOVE_STREAM | AFFINODE_MOVE_HAND_OVER)
/* Of parks: no host memory but lots.  */
#define LOTS_ALONE (1ull << AFFINODE_MOVE_BUDGET_SHIFT)
extern const struct move kinds_of_move[MOVES];

/* Park or resume, and wait: the reply's status.  */
int controller_move(uint32_t command);
/* Park surely: again, while this machine is too slow for the mover's patience with a call or the GPU.  */
void controller_park(void);
void controller_park_with(uint64_t how); /* move flags */
/* The first step of such a move: its number.  */
uint32_t controller_prepare(uint32_t command, uint64_t how);
/* Have all host memory given back that is kept, of which there is none then.  */
void controller_trim(void);
/* A resume succeeds.  */
#define CHECK_RESUMES() CHECK_EQUAL(controller_move(AFFINODE_COMMAND_RESUME), AFFINODE_OK)
/* Wait for the next notice of that kind: its number, its bytes.  */
uint32_t controller_noticed(uint32_t kind, uint64_t *bytes);
extern uint32_t controller_noticed_flags; /* of that notice */
/* Notices of that kind that came since, each counted once.  */
unsigned controller_count(uint32_t kind);
/* Read what came, if anything did; false: the shim closed the link.  */
bool controller_pump(void);
unsigned controller_heartbeats(void); /* that were among it, since the shim was accepted */

void test_say_page(void); /* what the shim says of itself, on stderr */
struct affinode_page page_read(void);
/* Until the condition on `page` holds.  */
#define PAGE_UNTIL(condition)                                                  \
	do {                                                                   \
		for (struct affinode_page page = page_read(); !(condition);) { \
			controller_pump();                                     \
			test_pause();                                          \
			page = page_read();                                    \
		}                                                              \
	} while (0)

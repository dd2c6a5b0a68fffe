/* Between the files of the link: thread.c (its thread), connection.c and commands.c  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "link/messages.h"
#include "mover/mover.h"
#include "protocol.h"

#define CONNECT_FIRST_NS (100 * MS_NS)
#define AWAY_LOOK_NS (50 * MS_NS)

/* Of the link thread alone.  */
struct link_state {
	int socket; /* -1: none */
	bool owes_hello; /* connected, and the grant is being read */
	bool welcomed;
	uint64_t looked_ns; /* when the thread last looked at the clock */
	uint64_t heard_ns, said_ns, heartbeat_ns;
	uint64_t connect_at_ns, connect_pause_ns;
	uint64_t sample_at_ns;
	uint64_t alone_at_ns; /* 0: no call waits, or a controller is there */
	uint32_t epoch;       /* the last command taken */
	struct move move;     /* the last one handed to the mover */
	bool owes_reply;      /* for that one, to this controller */
	enum affinode_state told_state;
	bool told_want;
	char away[AFFINODE_TEXT_SIZE + 8]; /* while the file is there it is not looked for a controller; "": it is */
	uint64_t away_ns;                  /* so much longer at most */
	uint64_t hang_up_at_ns;            /* if the controller has not by then */
};
extern struct link_state link_;

/* The connection: made and kept, messages in and out. Without a connection sending does nothing.  */
void link_try_connect(uint64_t now);
void link_say_hello(uint64_t now);
void link_keep_alive(uint64_t now);
void link_receive(void);
/* The process becomes an image: no controller is looked for as long as the folder says so (protocol.h).  */
void link_leave(const char *folder);
bool link_is_away(void);
void link_look_whether_away(uint64_t now);
void link_send(void *message, enum affinode_message type, uint32_t size, uint32_t epoch);
void link_notify(uint32_t kind);
void link_reply(const struct moved *moved);

/* What the controller says. A descriptor that is kept is set to -1.  */
void link_take_message(const union link_message *message, int *descriptor);

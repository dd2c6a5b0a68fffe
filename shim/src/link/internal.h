/* What thread.c, connection.c and commands.c share. For the link's thread alone.  */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "link/messages.h"
#include "mover/mover.h"
#include "protocol.h"

#define CONNECT_FIRST_NS (100 * MS_NS)
#define AWAY_LOOK_NS (50 * MS_NS)

struct link_state {
	int socket; /* -1: none */
	bool owes_hello; /* it is connected, and waits until the grant is read */
	bool welcomed;
	uint32_t unwelcome; /* how often in a row a controller hung up without a welcome */
	uint64_t looked_ns; /* when the thread last looked at the clock */
	uint64_t heard_ns, said_ns, heartbeat_ns;
	uint64_t connect_at_ns, connect_pause_ns;
	uint64_t sample_at_ns;
	uint64_t alone_at_ns; /* when to resume without a controller; 0: no call waits, or a controller is there */
	uint32_t epoch;       /* of the last command that was taken */
	struct move move;     /* the last that was handed to the mover */
	bool owes_reply;      /* this controller waits for the reply to that move */
	enum affinode_state told_state;
	bool told_want;
	char away[AFFINODE_TEXT_SIZE + 8]; /* a file: while it is there no controller is looked for; "": no such file */
	uint64_t away_ns;                  /* for how much longer at most */
	uint64_t hang_up_at_ns;            /* when to hang up, if the controller has not by then */
};
extern struct link_state link_;

/* Make the connection and keep it; receive and send messages. Without a connection sending does nothing.  */
void link_try_connect(uint64_t now);
void link_say_hello(uint64_t now);
void link_keep_alive(uint64_t now);
void link_look_whether_taken(void);
void link_receive(void);
/* Leave the controller, since the process becomes an image: none is looked for as long as the folder says so (protocol.h).  */
void link_leave(const char *folder);
bool link_is_away(void);
void link_look_whether_away(uint64_t now);
void link_send(void *message, enum affinode_message type, uint32_t size, uint32_t epoch);
void link_notify(uint32_t kind);
void link_reply(const struct moved *moved);

/* Act on a message of the controller's. *descriptor is set to -1 if it is taken; else the caller closes it.  */
void link_take_message(const union link_message *message, int *descriptor);

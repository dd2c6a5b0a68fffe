/* What the rest of the shim knows of the node controller: whether it is there, and what it last said to the user; and how the
 * link's thread, which talks with it, is woken.  */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* Have the link's thread look what changed. Async-signal-safe, never blocks.  */
void link_wake(void);

/* The event descriptor that link_wake writes to; -1: the link has no thread.  */
extern _Atomic int link_wake_fd;

bool link_is_connected(void);
void link_set_connected(bool now);

/* For a process that has met no controller: have one looked for now (link_look), count the tries in vain (link_looks), and tell whether
 * one may still come, since it is being started or has no time to answer (link_may_come).  */
void link_look(void);
bool link_must_connect(void); /* true once for each link_look */
void link_note_attempt(bool may_come);
uint32_t link_looks(void);
bool link_may_come(void);

/* Copy what the controller told the user last.  */
void link_notice_text(char *text, size_t size);

/* What a call's wait has told the user so far; begins as zeros.  */
struct told_wait {
	bool printed;   /* a line on stderr, which stays in the notebook's output */
	bool alone;     /* that line said that no controller answers */
	bool displayed; /* shown by the kernel's waiting display, until the wait ends */
};

/* Tell the user, once a wait, that a call has waited long: `since_ns` is when it began.  */
void link_tell_wait(uint64_t since_ns, struct told_wait *told);
void link_end_told_wait(struct told_wait *told);

/* For the kernel's waiting display, a thread of its Python's: sleep until what there is to show is not that of version
 * `seen` any more, `timeout_ns` at most. Returns the version, and in `text` what to show; "" if no call waits. Once this has
 * been called, waits are shown by it and not on stderr.  */
uint32_t link_next_display(uint32_t seen, uint64_t timeout_ns, char *text, size_t size);

void link_words_set(const struct affinode_notice *notice);

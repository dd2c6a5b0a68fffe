/* One line to the file that AFFINODE_LOG names, if any; nothing else in the shim speaks but the gate's waiting line.  */
#pragma once

void log_open(void);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One line to the user's stderr; for what they must know and can act on.  */
void tell_person(const char *format, ...) __attribute__((format(printf, 1, 2)));

"""The wire format of the link, and the page that a process shares."""

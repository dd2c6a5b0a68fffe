"""One pass: what it has decided so far, and what that leaves."""

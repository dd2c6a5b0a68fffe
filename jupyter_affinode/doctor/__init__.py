"""What works on this machine, and what does not: `jupyter affinode doctor`."""

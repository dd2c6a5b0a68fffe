"""Commands about the machine: what works, how fast, for how many users, history, and what a site sets up."""

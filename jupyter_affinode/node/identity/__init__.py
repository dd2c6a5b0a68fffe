"""Which user a peer is, what it may see, and how much of the controller it may use."""

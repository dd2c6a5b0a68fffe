"""The controller's traits and command-line options."""

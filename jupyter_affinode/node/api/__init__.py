"""The controller's HTTP API on its Unix socket."""

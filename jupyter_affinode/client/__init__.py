"""The clients of the controller: its API, and signing of grants."""

"""Carrying out what was decided: moves, allocations, lots, evictions, requests of users."""

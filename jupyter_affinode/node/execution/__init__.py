"""Carries out decisions: moves, allocations, lots, evictions, users' requests."""

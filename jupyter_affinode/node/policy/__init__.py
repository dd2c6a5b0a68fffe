"""The decision: pure functions over a snapshot."""

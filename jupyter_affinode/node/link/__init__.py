"""The link to the shims."""

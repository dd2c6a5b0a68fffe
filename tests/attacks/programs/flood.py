"""Connections that say nothing, half requests, descriptors and messages without end."""

import attacking  # noqa: F401  # finds the next one
from attacker import flood

flood()

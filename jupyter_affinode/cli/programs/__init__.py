"""Commands that start programs managed, or on a simulated GPU."""

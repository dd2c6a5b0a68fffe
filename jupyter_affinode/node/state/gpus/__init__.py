"""The machine's GPUs: figures, reservations, speeds, processes without a shim."""

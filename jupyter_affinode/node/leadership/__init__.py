"""Which controller serves a machine's GPUs: election and handover."""

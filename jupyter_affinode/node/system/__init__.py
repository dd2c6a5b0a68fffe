"""Interfaces to the operating system and NVML."""

"""What the operating system and NVML say."""

"""Host memory and disk that parked memory goes to."""

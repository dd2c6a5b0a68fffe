"""What a user is shown: JSON, texts, streams of events."""

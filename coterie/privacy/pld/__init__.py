"""Privacy-loss distributions."""

"""What the papers prove, as functions that tests can check."""

"""What the papers prove, as functions that can be checked."""

"""Where examples come from, one file a format."""

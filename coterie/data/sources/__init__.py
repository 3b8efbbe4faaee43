"""Where examples come from: one module per format."""

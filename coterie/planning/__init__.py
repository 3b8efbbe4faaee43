"""Plans: what a training will do, send and spend, found by a dry run."""

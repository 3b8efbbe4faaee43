"""What stands between a data set and the world: meters, claims, checkpoints, secrets."""

"""Many models trained as one: the silos of all runs are rows of one tensor."""

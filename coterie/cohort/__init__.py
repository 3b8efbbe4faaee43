"""Train many models as one: the silos of all runs are rows of a single tensor."""

"""What is learned: models, losses and scores."""

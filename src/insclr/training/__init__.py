"""Training: loss, step, rounds, checkpoints, tracking."""

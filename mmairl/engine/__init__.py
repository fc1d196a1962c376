"""Training: start, step, watch, save and resume a run."""

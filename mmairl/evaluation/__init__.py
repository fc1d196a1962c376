"""Measuring a frozen backbone: features, k-NN, linear probe; reads checkpoints and knows nothing of training."""

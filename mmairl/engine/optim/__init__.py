"""Optimizers, learning rate schedules and optimizer wrappers."""

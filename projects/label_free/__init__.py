"""Compute the regret of measures that need no labels: the test score that is lost if they choose a network."""

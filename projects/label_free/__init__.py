"""Compute the regret of measures that need no labels, over the networks of one study or of several."""

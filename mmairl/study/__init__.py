"""Studies: train a set of configs from several seeds, and compare them on one page."""

"""From a set of configs to one table."""

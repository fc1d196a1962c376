"""Regret of measures that need no label: over the networks of a study, and pooled over studies."""

"""Instruments for representations: norms and NormRescale, CKA, geometry, invariance; they read checkpoints and never train."""

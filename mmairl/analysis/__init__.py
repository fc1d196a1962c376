"""What a representation is like: norms and NormRescale, CKA, geometry, invariance; reads checkpoints, never trains."""

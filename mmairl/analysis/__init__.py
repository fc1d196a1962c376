"""Measurements of representations: CKA, geometry, invariance, label-free measures and maps. Nothing here trains a network."""

"""Measure the benefit of pre-training on custom images."""

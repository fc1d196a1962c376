"""The benefit of pre-training on custom images."""

"""The Python API for pre-training on custom images and for comparing checkpoints."""

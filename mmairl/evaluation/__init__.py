"""Measure a backbone: on its frozen features, or by training on top of it; and record what each number depends on."""

"""Evaluate backbones by frozen features or by further training, and record what each score depends on."""

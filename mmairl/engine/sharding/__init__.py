"""Large backbones over several GPUs: zero.py divides a run over its processes."""

"""Large backbones over several GPUs."""

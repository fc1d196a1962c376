"""Large backbones over several GPUs by DeepSpeed's ZeRO, with the numbers of an ordinary run; strategy.py is where to begin."""

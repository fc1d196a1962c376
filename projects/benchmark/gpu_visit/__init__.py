"""Check and measure a borrowed GPU machine in one command of at most 560 seconds."""

"""Check and measure a GPU machine in one command of at most 560 seconds."""

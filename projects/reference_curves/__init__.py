"""Store the reference curves that the health page of each run shows."""

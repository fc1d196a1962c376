"""Store the reference curves of the health page."""

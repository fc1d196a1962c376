"""Simulate how often verdicts of studies are wrong: python -m projects.verdicts."""

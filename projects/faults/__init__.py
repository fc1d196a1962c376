"""Inject random faults into runs and files, and count the outcomes: python -m projects.faults."""

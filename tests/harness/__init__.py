"""Shared parts of the tests: toy configs, processes, and runs that stop and resume."""

"""Shared parts of the tests: toy configs, processes, and runs that are interrupted and resumed."""

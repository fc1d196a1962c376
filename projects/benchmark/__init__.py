"""Measure speed and memory: each case runs mmairl and another library in turn, in one process, and prints the ratio."""

"""Measure how many tuning trials NormRescale saves."""

"""Optimizers, schedules, and the wrapper that steps them."""

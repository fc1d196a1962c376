"""Hooks of training runs."""

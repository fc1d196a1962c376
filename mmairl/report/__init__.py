"""Showing what was measured: tables, figures and one self-contained page."""

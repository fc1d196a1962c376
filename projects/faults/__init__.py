"""Tests that look for what nobody thought of: inputs drawn at random and broken on purpose."""

"""Hooks: what happens between steps. Each is imported when a config names it: some bring a whole evaluation along."""

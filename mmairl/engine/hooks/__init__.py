"""Hooks: what happens between steps. Each is imported when a config names it: some bring a whole evaluation along."""

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.engine.hooks', name)

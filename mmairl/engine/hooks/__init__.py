"""Hooks of training runs. Each class is imported at its first use."""

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.engine.hooks', name)

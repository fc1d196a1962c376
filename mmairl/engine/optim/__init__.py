"""Optimizers, schedules, and the wrapper that steps them; a class is imported when it is asked for."""

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.engine.optim', name)

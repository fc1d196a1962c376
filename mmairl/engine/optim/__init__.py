"""Optimizers, schedules and optimizer wrappers. A class is imported on first use."""

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.engine.optim', name)

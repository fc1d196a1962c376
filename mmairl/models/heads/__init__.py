"""The heads, which compute the loss from the queries and keys of an image's views."""

from mmairl.models.heads.base import Head, PairwiseHead, unit
from mmairl.registry import class_of

__all__ = ['Head', 'PairwiseHead', 'unit']


def __getattr__(name: str) -> type:
    return class_of('mmairl.models.heads', name)

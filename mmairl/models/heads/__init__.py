"""The heads, which compute the loss from the queries and keys of an image's views."""

from mmairl.models.heads.base import Head, PairwiseHead, unit

__all__ = ['Head', 'PairwiseHead', 'unit']

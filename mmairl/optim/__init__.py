"""Optimizers, how they group a model's parameters, and the wrappers that step them."""

from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.optim.constructor import LARSOptimWrapperConstructor, adapted_and_excluded
from mmairl.optim.head_sgd import HeadSGD
from mmairl.optim.lars import LARS
from mmairl.optim.wrapper import LARSOptimWrapper

__all__ = [
    'LARS',
    'AutocastOptimWrapper',
    'HeadSGD',
    'LARSOptimWrapper',
    'LARSOptimWrapperConstructor',
    'adapted_and_excluded',
]

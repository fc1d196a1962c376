"""LARS, how it groups a model's parameters, and the wrapper that steps it."""

from mmairl.optim.constructor import LARSOptimWrapperConstructor, adapted_and_excluded
from mmairl.optim.lars import LARS
from mmairl.optim.wrapper import LARSOptimWrapper

__all__ = ['LARS', 'LARSOptimWrapper', 'LARSOptimWrapperConstructor', 'adapted_and_excluded']

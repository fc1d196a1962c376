"""Optimizers, schedules, and the wrapper that steps them."""

from mmengine.optim import DefaultOptimWrapperConstructor

from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.optim.head_sgd import HeadSGD
from mmairl.optim.lars import LARS
from mmairl.optim.schedule import WarmUpLR
from mmairl.registry import OPTIM_WRAPPER_CONSTRUCTORS

# Older configs name a constructor for LARS, which has none of its own any more.
OPTIM_WRAPPER_CONSTRUCTORS.register_module(name='LARSOptimWrapperConstructor', module=DefaultOptimWrapperConstructor)

__all__ = ['LARS', 'AutocastOptimWrapper', 'HeadSGD', 'WarmUpLR']

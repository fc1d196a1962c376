"""Optimizers, schedules, and the wrapper that steps them."""

from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.optim.head_sgd import HeadSGD
from mmairl.optim.lars import LARS
from mmairl.optim.schedule import WarmUpLR

__all__ = ['LARS', 'AutocastOptimWrapper', 'HeadSGD', 'WarmUpLR']

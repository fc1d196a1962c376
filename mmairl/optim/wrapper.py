"""The optim wrapper for LARS."""

from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class LARSOptimWrapper(AutocastOptimWrapper):
    """AutocastOptimWrapper by the name that our LARS configs give it.

    Example:
        >>> optimizer = dict(type='LARS', lr=4.8, momentum=0.9, weight_decay=1e-6)
        >>> optim_wrapper = dict(type='LARSOptimWrapper', optimizer=optimizer, dtype='bfloat16')
    """

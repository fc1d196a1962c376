"""The optim wrapper for LARS."""

from mmairl.errors import UserError
from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.optim.lars import LARS
from mmairl.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class LARSOptimWrapper(AutocastOptimWrapper):
    """Steps LARS, in full precision or under autocast to ``dtype``, once its two groups are seen to be there.

    Example:
        >>> optimizer = dict(type='LARS', lr=4.8, momentum=0.9, weight_decay=1e-6)
        >>> optim_wrapper = dict(type='LARSOptimWrapper', optimizer=optimizer, dtype='bfloat16')
    """

    def __init__(self, optimizer: LARS, **kwargs) -> None:
        if [group.get('adapt') for group in optimizer.param_groups] != [True, False]:
            raise UserError(
                'LARSOptimWrapper needs LARS over two groups, adapted and excluded; '
                "build it from a config in the scope mmairl, or with mmairl's adapted_and_excluded(model)."
            )
        super().__init__(optimizer, **kwargs)

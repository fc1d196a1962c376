"""Muon of timm. Torch's Muon only accepts matrices, and convolutional networks have tensors of four axes and of one."""

from timm.optim import Muon as TimmMuon

from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class Muon(TimmMuon):
    """Momentum with orthogonalized matrices. Kernels count as matrices with a row per output; gains and biases use AdamW.

    Takes the arguments of `timm.optim.Muon`.

    Example:
        >>> optimizer = dict(type='Muon', lr=0.02, momentum=0.95, nesterov=True, weight_decay=0.01)
    """

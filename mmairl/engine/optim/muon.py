"""Muon by timm: torch's own takes matrices alone, and a network with convolutions has four axes and one."""

from timm.optim import Muon as TimmMuon

from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class Muon(TimmMuon):
    """Momentum whose matrices are made orthogonal; a kernel is a matrix of its outputs, and gains and biases take AdamW.

    Examples:
        >>> optimizer = dict(type='Muon', lr=0.02, momentum=0.95, nesterov=True, weight_decay=0.01)
    """

"""timm's Muon. Torch's Muon only accepts matrices, but convolutional networks have tensors of four axes and of one."""

from timm.optim import Muon as TimmMuon

from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class Muon(TimmMuon):
    """Momentum with orthogonalized matrices. A kernel is a matrix with a row per output; gains and biases use AdamW.

    The arguments are those of `timm.optim.Muon`.

    Example:
        >>> optimizer = dict(type='Muon', lr=0.02, momentum=0.95, nesterov=True, weight_decay=0.01)
    """

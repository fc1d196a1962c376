"""The Muon optimizer of timm. Torch's Muon only accepts matrices, but convolutional networks also have other tensors."""

from timm.optim import Muon as TimmMuon

from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class Muon(TimmMuon):
    """SGD with momentum whose updates of weight matrices are orthogonalized.

    A convolution kernel counts as a matrix with one row per output channel. AdamW (or NAdamW with `nesterov=True`) trains the
    other parameters: gains, biases, position embeddings, depthwise kernels and matrices with a very small or very unequal
    shape. The arguments are those of `timm.optim.Muon`.

    Example:
        >>> optimizer = dict(type='Muon', lr=0.02, momentum=0.95, nesterov=True, weight_decay=0.01)
    """

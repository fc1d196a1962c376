"""The network of a run."""

from mmengine.model import is_model_wrapper
from torch import nn


def network_of(runner: object) -> nn.Module:
    """The runner's network itself, without the wrapper that joins several processes."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model

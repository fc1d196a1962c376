"""The model under DeepSpeed's engine, as mmengine's loops and hooks see it."""

from typing import Any

import torch
from mmengine._strategy.deepspeed import MMDeepSpeedEngineWrapper
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from mmairl.registry import MODEL_WRAPPERS


@MODEL_WRAPPERS.register_module()
class ZeroModel(MMDeepSpeedEngineWrapper):
    """mmengine's wrapper of the engine, which runs the model's own `train_step` with the engine's forward pass in it."""

    def __init__(self, model, half: torch.dtype | None) -> None:
        self.model, self.half = model, half
        model.module._run_forward = self._run_forward

    def train_step(self, data: dict | tuple | list, optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        return self.model.module.train_step(data, optim_wrapper)

    def val_step(self, data: dict | tuple | list) -> list:
        return self.model.module.val_step(data)

    def test_step(self, data: dict | tuple | list) -> list:
        return self.model.module.test_step(data)

    def _cast_inputs_half(self, inputs: Any) -> Any:
        return inputs

    def _run_forward(self, data: dict | tuple | list, mode: str) -> Any:
        """The engine's forward pass; weights in half the width want images in half the width."""
        if self.half is not None and isinstance(data, dict):
            data = {**data, 'inputs': tree_map_only(Tensor, self._narrow, data['inputs'])}
        return super()._run_forward(data, mode)

    def _narrow(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.half) if tensor.is_floating_point() else tensor


class InFloat:
    """A batch norm's forward pass with weights in float32, as its running statistics are: the kernels want them alike."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        kept = self.layer._parameters
        self.layer._parameters = {name: weight if weight is None else weight.float() for name, weight in kept.items()}
        try:
            return type(self.layer).forward(self.layer, x)
        finally:
            self.layer._parameters = kept


def normalise_in_float(model: nn.Module) -> None:
    """Have every layer with running statistics take them, and its mean and variance, in float32."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            layer.forward = InFloat(layer)

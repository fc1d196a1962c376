"""Run mmdet and mmseg without mmcv's compiled ops: torchvision's RoIAlign and NMS stand in for mmcv's.

mmcv-lite holds the Python of `mmcv.ops`, but not the compiled module `mmcv._ext` that it calls. Building it takes 20 minutes,
so a stand-in is put in its place. What a ResNet detector needs is computed by torchvision, any other op is an error when it is
called. mmcv's own ops are used where they are installed and fit the machine.
"""

import sys
from collections.abc import Callable
from importlib import import_module  # noqa: TID251  mmcv's compiled ops by a fixed name
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

import numpy as np
import torch
import torchvision
from torch import Tensor

from mmairl.errors import UserError

NAME = 'mmcv._ext'


def use_torchvision_ops() -> bool:
    """Make `mmcv.ops` importable and say whether torchvision's ops are used; call it before mmdet or mmseg is imported."""
    if NAME in sys.modules:
        return isinstance(sys.modules[NAME], TorchvisionOps)
    try:
        compiled = import_module(NAME)
        if not torch.cuda.is_available() or compiled.get_compiling_cuda_version() != 'not available':
            return False
    except ImportError:  # mmcv-lite, or ops that were built for another torch
        pass
    sys.modules[NAME] = TorchvisionOps()
    # mmdet imports one op's class from here, where it is missing if this was imported before the stand-in was there.
    if transformer := sys.modules.get('mmcv.cnn.bricks.transformer'):
        transformer.MultiScaleDeformableAttention = import_module('mmcv.ops').MultiScaleDeformableAttention
    return True


class TorchvisionOps(ModuleType):
    """The functions of `mmcv._ext` under mmcv's names, with mmcv's arguments."""

    def __init__(self) -> None:
        super().__init__(NAME, 'torchvision in place of the compiled ops')
        self.__spec__ = ModuleSpec(NAME, None)  # importlib asks for it
        self.nms = nms
        self.roi_align_forward = roi_align_forward
        self.roi_align_backward = roi_align_backward
        self.get_compiler_version = self.get_compiling_cuda_version = lambda: 'not available'

    def __getattr__(self, name: str) -> Callable:
        """Any other op: it exists, since `mmcv.ops` imports all of them at once, and it cannot be called."""
        if name.startswith('__'):
            raise AttributeError(name)

        def not_compiled(*args: object, **kwargs: object) -> NoReturn:
            raise UserError(
                f'{name} is an op of mmcv that torchvision has not; build it with requirements/install.sh ops'
            )

        return not_compiled


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """The indices of the boxes that stay, best first; `offset` 1 means that a box includes its last pixel."""
    corners = boxes + boxes.new_tensor([0, 0, offset, offset])
    # mmcv compares in float32, where 0.7 is a little less than in Python's float64.
    return torchvision.ops.nms(corners, scores, float(np.float32(iou_threshold)))


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor, **options: float | bool
) -> None:
    output.copy_(_roi_align(input, rois, **options))


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor, **options: float | bool
) -> None:
    """The op is linear in its input, so its gradient is found from any input, here from zeros.

    torchvision's own backward has no public name; this costs one more forward pass, which is small beside the heads.
    """
    with torch.enable_grad():
        zeros = torch.zeros_like(grad_input, requires_grad=True)
        output = _roi_align(zeros, rois, **options)
    grad_input.copy_(torch.autograd.grad(output, zeros, grad_output)[0])


def _roi_align(
    input: Tensor,
    rois: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> Tensor:
    if pool_mode == 0:
        raise UserError("torchvision's RoIAlign has no pool_mode='max'; build mmcv's with requirements/install.sh ops")
    size = (aligned_height, aligned_width)
    return torchvision.ops.roi_align(input, rois, size, spatial_scale, sampling_ratio, aligned)

"""Replacement of mmcv's compiled ops by torchvision's RoIAlign and NMS, so that mmdet and mmseg run with mmcv-lite.

mmcv-lite contains the Python code of `mmcv.ops`, but not the compiled module `mmcv._ext`, whose build takes 20 minutes. The
module here takes its place. It has the ops that a ResNet detector requires, and any other op raises when it is called. If
mmcv's own ops are installed and support the machine, they are used.
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
    """Make `mmcv.ops` importable. Return whether it uses torchvision's ops. Call this before importing mmdet or mmseg."""
    if NAME in sys.modules:
        return isinstance(sys.modules[NAME], TorchvisionOps)
    try:
        compiled = import_module(NAME)
        has_cuda_ops = compiled.get_compiling_cuda_version() != 'not available'
        if has_cuda_ops or not torch.cuda.is_available():
            return False
    except ImportError:  # mmcv-lite, or ops built for another torch
        pass
    sys.modules[NAME] = TorchvisionOps()
    # mmdet imports this class from there. It is missing if the module was imported before this replacement.
    if transformer := sys.modules.get('mmcv.cnn.bricks.transformer'):
        ops = import_module('mmcv.ops')
        transformer.MultiScaleDeformableAttention = ops.MultiScaleDeformableAttention
    return True


class TorchvisionOps(ModuleType):
    """The functions of `mmcv._ext` under mmcv's names, with mmcv's arguments."""

    def __init__(self) -> None:
        super().__init__(NAME, 'torchvision in place of the compiled ops')
        self.__spec__ = ModuleSpec(NAME, None)  # which importlib requires
        self.nms = nms
        self.roi_align_forward = roi_align_forward
        self.roi_align_backward = roi_align_backward
        self.get_compiler_version = self.get_compiling_cuda_version = lambda: 'not available'

    def __getattr__(self, name: str) -> Callable:
        """Return a function that raises when called, because `mmcv.ops` imports all ops at once, so each must exist."""
        if name.startswith('__'):
            raise AttributeError(name)

        def not_compiled(*args: object, **kwargs: object) -> NoReturn:
            raise UserError(
                f"mmcv op '{name}' has no torchvision equivalent; install mmcv with compiled ops (requirements/install.sh ops)",
                code='no-compiled-op',
            )

        return not_compiled


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the selected boxes, best first. With `offset` 1, a box includes its last pixel."""
    corners = boxes + boxes.new_tensor([0, 0, offset, offset])
    # mmcv compares in float32, where the threshold can differ slightly from its value in float64.
    return torchvision.ops.nms(corners, scores, float(np.float32(iou_threshold)))


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    **options: float | bool,
) -> None:
    output.copy_(_roi_align(input, rois, **options))


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    **options: float | bool,
) -> None:
    """Compute the gradient from zeros: the op is linear in its input, so any input gives the same gradient.

    torchvision's own backward op is not public. The additional forward pass is cheap compared with the heads.
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
        raise UserError(
            "RoIAlign: torchvision has no pool_mode='max'; install mmcv with compiled ops (requirements/install.sh ops)",
            code='no-compiled-op',
        )
    size = (aligned_height, aligned_width)
    return torchvision.ops.roi_align(input, rois, size, spatial_scale, sampling_ratio, aligned)

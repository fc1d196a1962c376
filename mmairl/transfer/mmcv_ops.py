"""Replacement of mmcv's compiled ops by torchvision's RoIAlign and NMS, so that mmdet and mmseg run with mmcv-lite.

A config of mmdet or mmseg uses the replacement by `custom_imports=dict(imports='mmairl.transfer.mmcv_ops')`, because importing
this module replaces the ops if mmcv's own ops are missing or do not support the machine. mmcv-lite contains the Python code of
`mmcv.ops`, but not the compiled module `mmcv._ext`, which takes 20 minutes to build. `TorchvisionOps` is a substitute for this
module. It has the ops that a ResNet detector requires. Any other op raises an error when it is called.
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
    """Make `mmcv.ops` importable, and return whether torchvision's ops replace mmcv's.

    Call this before importing mmdet or mmseg.
    """
    if NAME in sys.modules:
        return isinstance(sys.modules[NAME], TorchvisionOps)
    try:
        compiled = import_module(NAME)
        has_cuda_ops = compiled.get_compiling_cuda_version() != 'not available'
        if has_cuda_ops or not torch.cuda.is_available():
            return False
    except ImportError:
        # mmcv-lite is installed, or the ops were built for another version of torch.
        pass
    sys.modules[NAME] = TorchvisionOps()
    # mmdet imports MultiScaleDeformableAttention from `mmcv.cnn.bricks.transformer`. If that module was imported before
    # `mmcv.ops` was importable, it lacks this class, so the class is added.
    if transformer := sys.modules.get('mmcv.cnn.bricks.transformer'):
        ops = import_module('mmcv.ops')
        transformer.MultiScaleDeformableAttention = ops.MultiScaleDeformableAttention
    return True


class TorchvisionOps(ModuleType):
    """A substitute for the module `mmcv._ext`. Its functions have mmcv's names and arguments."""

    def __init__(self) -> None:
        super().__init__(NAME, 'torchvision in place of the compiled ops')
        self.__spec__ = ModuleSpec(NAME, None)  # importlib requires that a module has a spec
        self.nms = nms
        self.roi_align_forward = roi_align_forward
        self.roi_align_backward = roi_align_backward
        self.get_compiler_version = self.get_compiling_cuda_version = lambda: 'not available'

    def __getattr__(self, name: str) -> Callable:
        """Return a function that raises when it is called. `mmcv.ops` imports all ops at once, so each op must exist."""
        if name.startswith('__'):
            raise AttributeError(name)

        def not_compiled(*args: object, **kwargs: object) -> NoReturn:
            raise UserError(
                f"mmcv op '{name}' has no torchvision equivalent; install mmcv with compiled ops",
                code='no-compiled-op',
            )

        return not_compiled


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes that non-maximum suppression keeps, in descending order of their scores.

    If `offset` is 1, the corners of a box are its first and its last pixel, so its width is x2 - x1 + 1.
    """
    corners = boxes + boxes.new_tensor([0, 0, offset, offset])
    # mmcv stores the threshold in float32, so the threshold is rounded to float32 here as well.
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
    """Write the gradient with respect to the input of RoIAlign into `grad_input`.

    torchvision's own backward op is not public, so this function differentiates a forward pass. RoIAlign is linear in its
    input, so the gradient is the same for every input, and zeros are used. The additional forward pass is cheap compared with
    the detection heads.
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
            "RoIAlign: torchvision has no pool_mode='max'; install mmcv with compiled ops",
            code='no-compiled-op',
        )
    size = (aligned_height, aligned_width)
    return torchvision.ops.roi_align(input, rois, size, spatial_scale, sampling_ratio, aligned)


use_torchvision_ops()

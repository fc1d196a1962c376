"""Measure the norms of a backbone's weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mmengine import Config

from mmairl.checkpoints.norms import typical_growth
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.protocol import Outcome, Protocol, Sets
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('norms')
@dataclass(frozen=True)
class WeightNorms(Protocol):
    """Measure the norms of a checkpoint's weights, without using any image.

    For each 3x3 convolution, the norm of its weights is divided by the expected norm after Kaiming
    initialization. The score is the base-10 logarithm of the median ratio.
    """

    metric: ClassVar = 'none'
    null_rows: ClassVar = ()
    unit: ClassVar = ''

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: Mapping[str, Any]
    ) -> Outcome:
        growth = typical_growth(subject.weights) if isinstance(subject, Backbone) else 0
        if not growth:
            raise UserError(
                f"norms: requires a checkpoint with 3x3 convolutions ('{subject}'); use the "
                'checkpoint of a ResNet',
                code='no-convolutions',
            )
        return {'log10 of weight norms': math.log10(growth)}, {}, {}

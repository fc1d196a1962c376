"""Fine-tuning of a whole backbone with a linear classifier."""

from dataclasses import dataclass
from typing import ClassVar

from mmairl.evaluation.training_protocol import TrainingProtocol
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('finetune')
@dataclass(frozen=True)
class FineTuning(TrainingProtocol):
    """Train backbone and classifier together, by BYOL's recipe of 20 000 steps or `recipes.finetune` of the config."""

    recipe_name: ClassVar = 'finetune_20k'

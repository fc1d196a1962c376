"""Fine-tune a whole backbone together with a linear classifier."""

from dataclasses import dataclass
from typing import ClassVar

from mmairl.evaluation.training_protocol import TrainingProtocol
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('finetune')
@dataclass(frozen=True)
class FineTuning(TrainingProtocol):
    """Train the backbone together with a linear classifier.

    The default recipe is BYOL's, in which each training takes 20 000 steps. The config key
    `recipes.finetune` selects another recipe.
    """

    recipe_name: ClassVar = 'finetune_20k'

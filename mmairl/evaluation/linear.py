"""Train a linear classifier on a frozen backbone (linear evaluation)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmengine import Config

from mmairl.errors import UserError
from mmairl.evaluation.training_protocol import TrainingProtocol
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('linear')
@dataclass(frozen=True)
class LinearEvaluation(TrainingProtocol):
    """Train a linear classifier on a frozen backbone.

    The default recipe is MoCo's, or BYOL's if the weights were trained with LARS.

    Args:
        sweep: Whether to train one classifier for each combination of the settings in the recipe's
            `sweep`, all in one run, and to test the combination that is best on held-out images.
            Default: the config's `evaluation.sweep`.
    """

    sweep: bool | None = None

    recipe_name: ClassVar = 'linear_sgd_100e'
    lars_recipe_name: ClassVar = 'linear_lars_80e'
    columns: ClassVar = {'in1k': 'linear, top-1'}

    def sweep_of(self, recipe: Config, cfg: Config) -> dict[str, Any] | None:
        if not (cfg.evaluation.get('sweep') if self.sweep is None else self.sweep):
            return None
        by_sgd = recipe.optim_wrapper.optimizer.type == 'SGD'
        if not (by_sgd and recipe.model.get('frozen') and 'sweep' in recipe):
            raise UserError(
                'linear: a sweep requires a recipe that freezes the backbone, trains by SGD and '
                f"sets `sweep` ('{Path(recipe.filename).stem}'); use another recipe, or sweep=False",
                code='no-sweep',
            )
        return recipe.sweep

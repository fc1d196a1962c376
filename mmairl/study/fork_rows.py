"""Fork rows of a study: branches that continue another row's run, their trunk, with changed options."""

from collections.abc import Sequence

import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmairl.engine.fork import require_same_order
from mmairl.errors import UserError
from mmairl.registry import MODELS
from mmairl.study.factors import Configs, changed
from mmairl.study.spec import Row

Shapes = dict[str, tuple[int, ...]]  # of the tensors of a model, by name


def fork_epoch(row: Row, configs: Configs) -> int:
    """Return the number of epochs that a fork shares with its trunk."""
    epochs = configs[row.fork.of].train_cfg.get('max_epochs', 0)
    if epochs < 2:
        raise UserError(
            f"fork: the trunk '{row.fork.of}' requires at least 2 epochs ('{epochs}'); set train_cfg.max_epochs",
            code='trunk-without-epochs',
        )
    return min(max(1, round(row.fork.at * epochs)), epochs - 1)


def fork_points(trunk: Row, rows: Sequence[Row], configs: Configs) -> tuple[int, ...]:
    """Return the epochs at which other rows fork a row."""
    forks = [row for row in rows if row.fork and row.fork.of == trunk.name]
    return tuple(sorted({fork_epoch(row, configs) for row in forks}))


def require_forkable(rows: Sequence[Row], configs: Configs) -> None:
    """Raise if a fork changes the order of the images or the shapes of the model, compared with its trunk."""
    known: dict[str, Shapes] = {}
    for row in rows:
        if not row.fork:
            continue
        fork_epoch(row, configs)
        trunk = configs[row.fork.of]
        keys = changed(trunk, configs[row.name])
        try:
            require_same_order(keys)
        except UserError as error:
            raise UserError(f"row '{row.name}': {error}", code=error.code) from error
        model_keys = [key for key in keys if key.startswith('model.')]
        if model_keys and (other := _other_shapes(trunk, configs[row.name], known)):
            raise UserError(
                f"row '{row.name}': {', '.join(model_keys)} changes the shapes of the model ('{other[0]}'), for which the "
                'trunk has no weights; remove `fork`, so that the row is trained from its start',
                code='fork-changes-shapes',
            )


def _other_shapes(trunk: Config, branch: Config, known: dict[str, Shapes]) -> list[str]:
    """Return the tensors that differ in shape or exist in only one model.

    A queue of the trunk does not count, because `fit_to_branch` adapts it.
    """
    before, after = (_shapes(cfg, known) for cfg in (trunk, branch))
    names = dict.fromkeys([*after, *before])
    if 'queue.vectors' in before:
        names = [name for name in names if not name.startswith('queue.')]
    return [name for name in names if before.get(name) != after.get(name)]


def _shapes(cfg: Config, known: dict[str, Shapes]) -> Shapes:
    """Return the shapes of a config's model. A model that several rows share is built once."""
    model = cfg.model.to_dict()
    text = repr(model)
    if text not in known:
        tensors = MODELS.build(model).state_dict().items()
        known[text] = {
            name: tuple(value.shape) for name, value in tensors if torch.is_tensor(value)
        }
    return known[text]


class KeepForkPoints(Hook):
    """Saves and keeps the checkpoints from which forks continue, in addition to those that the config keeps.

    Args:
        epochs: The epochs after which forks continue.
    """

    priority = 'LOWEST'  # after the hook that saves checkpoints

    def __init__(self, epochs: Sequence[int]) -> None:
        self.epochs = epochs

    def before_train(self, runner: Runner) -> None:
        self._keep(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        epoch = runner.epoch + 1
        saving = _saving_hook(runner)
        name = saving.filename_tmpl.format(epoch)
        if epoch in self.epochs and name not in saving.kept:
            saving.save_as(runner, name, dict(epoch=epoch, iter=runner.iter))
        self._keep(runner)

    def _keep(self, runner: Runner) -> None:
        """Remove the files from the list of the checkpoint hook, which deletes the oldest files in it."""
        saving = _saving_hook(runner)
        names = map(saving.filename_tmpl.format, self.epochs)
        for name in set(names) & set(saving.kept):
            saving.kept.remove(name)


def _saving_hook(runner: Runner) -> CheckpointHook:
    return next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))

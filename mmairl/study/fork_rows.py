"""Forks: rows of a study whose runs continue the run of another row, their trunk, with changed options.

A row of a study is one configuration, usually trained with several seeds. The run of a fork is called a branch. Trunk and
branch share the epochs before the fork point, at which the branch continues a checkpoint of the trunk.
"""

from collections.abc import Sequence

import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmairl.errors import UserError
from mmairl.registry import MODELS
from mmairl.study.factors import Configs, changed
from mmairl.study.spec import Row

Shapes = dict[str, tuple[int, ...]]  # the shape of each tensor of a model, by the tensor's name


def fork_epoch(row: Row, configs: Configs) -> int:
    """Return the number of epochs that a fork shares with its trunk."""
    epochs = configs[row.fork.of].train_cfg.get('max_epochs', 0)
    if epochs < 2:
        raise UserError(
            f"fork: the trunk (the forked row '{row.fork.of}') must train for at least 2 epochs ('{epochs}'); set "
            'train_cfg.max_epochs in its config',
            code='trunk-without-epochs',
        )
    return min(max(1, round(row.fork.at * epochs)), epochs - 1)


def fork_points(trunk: Row, rows: Sequence[Row], configs: Configs) -> tuple[int, ...]:
    """Return the epochs of the trunk after which its forks continue."""
    forks = [row for row in rows if row.fork and row.fork.of == trunk.name]
    return tuple(sorted({fork_epoch(row, configs) for row in forks}))


def require_forkable(rows: Sequence[Row], configs: Configs) -> None:
    """Raise an error if a fork and its trunk differ in the order of images or in the shapes of the model's tensors.

    A fork cannot continue a run whose images come in another order, or whose weights do not fit the model of the fork.
    """
    known: dict[str, Shapes] = {}
    for row in rows:
        if not row.fork:
            continue
        fork_epoch(row, configs)
        trunk = configs[row.fork.of]
        keys = changed(trunk, configs[row.name])
        raise UserError(f"row '{row.name}': forks are not supported", code='no-forks')
        model_keys = [key for key in keys if key.startswith('model.')]
        if model_keys and (other := _other_shapes(trunk, configs[row.name], known)):
            raise UserError(
                f"row '{row.name}': {', '.join(model_keys)} changes the shapes of the model ('{other[0]}'), so the weights "
                'of the forked row do not fit; remove `fork` to train the row from its start',
                code='fork-changes-shapes',
            )


def _other_shapes(trunk: Config, branch: Config, known: dict[str, Shapes]) -> list[str]:
    """Return the names of tensors whose shapes differ between trunk and branch, or that only one of the models has.

    If the trunk has a queue, the queue's tensors are not compared, because `fit_to_branch` adapts them to the branch.
    """
    before, after = (_shapes(cfg, known) for cfg in (trunk, branch))
    names = dict.fromkeys([*after, *before])
    if 'queue.vectors' in before:
        names = [name for name in names if not name.startswith('queue.')]
    return [name for name in names if before.get(name) != after.get(name)]


def _shapes(cfg: Config, known: dict[str, Shapes]) -> Shapes:
    """Return the shapes of the tensors of a config's model. A model that several rows share is built only once."""
    model = cfg.model.to_dict()
    text = repr(model)
    if text not in known:
        tensors = MODELS.build(model).state_dict().items()
        known[text] = {
            name: tuple(value.shape) for name, value in tensors if torch.is_tensor(value)
        }
    return known[text]


class KeepForkPoints(Hook):
    """Saves the checkpoints from which forks continue, and keeps them from being deleted.

    Args:
        epochs: The epochs after which forks continue.
    """

    priority = 'LOWEST'  # This hook must run after the hook that saves checkpoints.

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
        """Remove the forks' checkpoints from the list of the checkpoint hook, so that the hook does not delete them.

        The checkpoint hook deletes the oldest files in its list.
        """
        saving = _saving_hook(runner)
        names = map(saving.filename_tmpl.format, self.epochs)
        for name in set(names) & set(saving.kept):
            saving.kept.remove(name)


def _saving_hook(runner: Runner) -> CheckpointHook:
    return next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))

"""Check a run before its first step."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.checkpoints.load import not_finite, require_same_keys
from mmairl.engine.checks import check_built_run
from mmairl.engine.fork import naming_changed_keys
from mmairl.errors import UserError
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS


@HOOKS.register_module()
class PreflightHook(Hook):
    """Stop a run that would fail later, or that would silently train something other than intended.

    mmengine alone would load those tensors of a checkpoint that fit the model, and ignore the others.

    Raises:
        UserError: If model, data, batch size and hooks do not fit together, if names or shapes of tensors differ between the
            checkpoint and the model, or if a value in the checkpoint is not finite.
    """

    priority = 'HIGHEST'

    def before_train(self, runner: Runner) -> None:
        check_built_run(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        path = runner.cfg.get('load_from') or 'the checkpoint'
        weights = checkpoint.get('state_dict', {})
        with naming_changed_keys(getattr(runner, 'start', None)):
            require_same_keys(weights, network_of(runner).state_dict(), path)
        invalid = not_finite(weights)
        if invalid:
            raise UserError(
                f"{path}: {len(invalid)} tensors are not finite ('{invalid[0]}'); start from an earlier checkpoint",
                code='weights-not-finite',
            )

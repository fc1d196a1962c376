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
    """Stop a run that could only fail later, or that would silently train something else.

    Raises:
        UserError: If the model, the data, the batch and the hooks do not fit together, or if a checkpoint has other
            tensors than the model, or values that are not finite; mmengine would load those that happen to fit.
    """

    priority = 'HIGHEST'

    def before_train(self, runner: Runner) -> None:
        check_built_run(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        path = runner.cfg.get('load_from') or 'given'
        weights = checkpoint.get('state_dict', {})
        with naming_changed_keys(getattr(runner, 'start', None)):
            require_same_keys(weights, network_of(runner).state_dict(), path)
        lost = not_finite(weights)
        if lost:
            raise UserError(
                f"{path}: {len(lost)} tensors are not finite ('{lost[0]}'); start from an earlier checkpoint",
                code='weights-not-finite',
            )

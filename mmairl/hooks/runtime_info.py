"""What a step returns, logged without waiting for it."""

from mmengine.hooks import RuntimeInfoHook
from mmengine.runner import Runner

from mmairl.engine.history import bounded, record
from mmairl.registry import HOOKS


@HOOKS.register_module()
class AsyncRuntimeInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, which would read every loss of every step back to the host."""

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        super().before_train_iter(runner, batch_idx, data_batch)
        bounded(runner.message_hub)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs: dict | None = None) -> None:
        for name, value in (outputs or {}).items():
            record(runner.message_hub, f'train/{name}', value)

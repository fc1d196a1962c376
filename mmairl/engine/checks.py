"""Check a run before training: `check_config` checks the config, and `check_built_run` checks what was built from it."""

import inspect

from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.config import require_known_keys
from mmairl.engine.hooks.after_step import accumulated
from mmairl.engine.resume import follows_scores, images_per_step
from mmairl.errors import UserError
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS

REQUIRED = ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
# Each part of a model that a hook changes: the method that the hook calls, the hook, and the hook's key in default_hooks.
MOVED = {
    'teacher': ('follow', 'MomentumHook', 'momentum'),
    'queue': ('enqueue', 'QueueHook', 'queue'),
}


def check_config(cfg: Config) -> None:
    """Raise if a section is missing, or for a misspelled key that no constructor would reject."""
    require_known_keys(cfg)
    for name in REQUIRED:
        if not isinstance(cfg.get(name), dict):
            raise UserError(
                f"{name}: a training config requires this section ('{cfg.get(name)}'); add it, or give a training config",
                code='not-a-training-config',
            )


def check_built_run(runner: Runner) -> None:
    """Raise if the run would fail later, or would silently train something other than intended."""
    # These modules are imported here, because commands that only check a config do not need them.
    from mmairl.data.datasets import innermost_dataset
    from mmairl.data.preprocess import require_channels

    loader = runner.train_dataloader
    model = network_of(runner)
    preprocessor = model.data_preprocessor
    if not hasattr(model, 'backbone'):
        raise UserError(
            f"model.type: the model has no attribute `backbone` ('{type(model).__name__}'); give the network that is evaluated "
            'this name',
            code='no-backbone',
        )
    views = [
        *(getattr(innermost_dataset(loader.dataset), 'views', None) or ()),
        *(getattr(preprocessor, 'views', None) or ()),
    ]
    require_channels(loader.dataset, getattr(preprocessor, 'mean', None), model.backbone, views)
    if views and not getattr(preprocessor, 'single_view', False):
        _check_takes_views(model)
    for name in MOVED:
        _check_moved(runner, model, name)
    _check_queue_length(runner, model)
    kinds = {
        type(part).__name__
        for part in (*runner.hooks, runner.strategy, getattr(model, 'head', None))
    }
    if 'ZeroStrategy' in kinds and (runner.val_loop or kinds & {'EMAHook', 'SwAVHead'}):
        raise UserError(
            'strategy: ZeroStrategy shards the weights, so val_cfg, EMAHook and SwAVHead do not work with it; remove them, or '
            'train without a strategy',
            code='not-with-zero',
        )
    if runner.val_loop is None and any(map(follows_scores, runner.param_schedulers)):
        raise UserError(
            'param_scheduler: ReduceOnPlateauLR requires a validation loop, whose scores it follows; set '
            "val_cfg=dict(type='KNNValLoop'), val_dataloader=dict() and val_evaluator=[], or choose another schedule",
            code='no-validation',
        )


def _check_takes_views(model: nn.Module) -> None:
    """Raise if the model takes a single tensor, as mmpretrain's MAE does."""
    inputs = inspect.signature(getattr(model, 'loss', print)).parameters.get('inputs')
    if inputs is not None and inputs.annotation is Tensor:
        raise UserError(
            f"model.type: the model takes one tensor, but the data set returns a list of views ('{type(model).__name__}'); set "
            'one view in the data set and model.data_preprocessor.single_view=True',
            code='takes-one-tensor',
        )


def _check_moved(runner: Runner, model: nn.Module, name: str) -> None:
    """Raise unless a part of the model has the method that the hook calls, and the run has the hook."""
    part = getattr(model, name, None)
    method, kind, key = MOVED[name]
    has_hook = any(isinstance(hook, HOOKS.get(kind)) for hook in runner.hooks)
    if not isinstance(part, nn.Module) or has_hook == hasattr(part, method):
        return
    advice = f'default_hooks.{key}={None if has_hook else dict(type=kind)}'
    raise UserError(
        f"model.{name}: its method {method} and {kind} require each other ('{type(part).__name__}'); define the method and "
        f'the hook, or neither, such as {advice}',
        code=f'no-{method}' if has_hook else f'no-{key}-hook',
    )


def _check_queue_length(runner: Runner, model: nn.Module) -> None:
    length = getattr(getattr(model, 'queue', None), 'length', None)
    total = images_per_step(runner.train_dataloader) * accumulated(runner)
    if length is not None and length < total:
        raise UserError(
            f"model.queue.length: the queue must hold all keys of an optimizer step ('{length}'); set a length of at least "
            f'{total}, or lower total_batch_size',
            code='queue-too-short',
        )

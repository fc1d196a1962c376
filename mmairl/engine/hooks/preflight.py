"""Checks of a run before its first step."""

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.checkpoints.load import require_same_keys
from mmairl.data.datasets import innermost_dataset
from mmairl.data.preprocess import require_channels
from mmairl.data.training_images import require_a_batch
from mmairl.engine.hooks.after_step import MomentumHook, QueueHook
from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.errors import UserError
from mmairl.models.norm import SyncBN, norms_of
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS


@HOOKS.register_module()
class PreflightHook(Hook):
    """Refuses a run that could only fail later or, worse, train something else in silence."""

    priority = 'HIGHEST'

    def before_train(self, runner: Runner) -> None:
        _check_parts(runner)
        require_a_batch(runner.train_dataloader)
        model, processes = network_of(runner), get_world_size()
        preprocessor, dataset = model.data_preprocessor, runner.train_dataloader.dataset
        views = [*getattr(innermost_dataset(dataset), 'views', ()), *(getattr(preprocessor, 'views', None) or ())]
        require_channels(dataset, getattr(preprocessor, 'mean', None), model.backbone, views)
        batch = runner.train_dataloader.batch_size or runner.train_dataloader.batch_sampler.batch_size
        norms = norms_of(model)
        joined = all(isinstance(layer, SyncBN) for layer in norms)
        if norms and batch * (processes if joined else 1) == 1:
            raise UserError(
                'a batch of one has no batch statistics, and the network has batch norm; raise total_batch_size'
            )
        hooks = {type(hook) for hook in runner.hooks}
        if getattr(model, 'teacher', None) is not None and not any(issubclass(hook, MomentumHook) for hook in hooks):
            raise UserError("the teacher never moves; set default_hooks.momentum=dict(type='MomentumHook')")
        queue = getattr(model, 'queue', None)
        if queue is None:
            return
        total = batch * processes * runner.optim_wrapper.accumulated
        if queue.length < total:
            raise UserError(
                f'the queue holds {queue.length} keys and one step brings {total}; '
                'raise model.queue.length or lower total_batch_size'
            )
        if queue.length > (images := len(runner.train_dataloader.dataset)):
            runner.logger.warning(
                f'the queue holds {queue.length} keys and the training set {images} images, so that images meet their own old '
                f'keys as negatives; set model.queue.length to {max(total, images // 10)} or less (tools/train.py --suggest)'
            )
        if not any(issubclass(hook, QueueHook) for hook in hooks):
            raise UserError(
                "the network has a queue that nothing fills; set default_hooks.queue=dict(type='QueueHook')"
            )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """A checkpoint fits key by key and shape by shape, or is refused: mmengine would load what happens to fit."""
        path = runner.cfg.get('load_from') or 'given'
        require_same_keys(checkpoint.get('state_dict', {}), network_of(runner).state_dict(), path)


def _check_parts(runner: Runner) -> None:
    """mmengine's own parts lack what ours add; the optimizer's wrapper cannot do without it."""
    if not runner.cfg.train_dataloader.keys() & {'batch_size', 'batch_sampler'}:
        raise UserError(
            "mmengine's own runner takes one image a step where train_dataloader.batch_size is not set; set it, or start with "
            "runner_type='mmairl.PreparedRunner', which shares total_batch_size among the processes"
        )
    wrapper = type(runner.optim_wrapper).__name__
    if not hasattr(runner.optim_wrapper, 'finite'):
        raise UserError(
            f"optim_wrapper.type='{wrapper}' is mmengine's and steps on losses that are not finite; set "
            "optim_wrapper.type='AutocastOptimWrapper' (with dtype='bfloat16' for mixed precision)"
        )
    exact = any(isinstance(hook, ExactCheckpointHook) for hook in runner.hooks) and hasattr(runner, 'snapshot')
    if not exact:
        runner.logger.warning(
            'a resumed run will draw other random numbers and may see images of its epoch again; to resume exactly, set '
            "runner_type='mmairl.PreparedRunner' and default_hooks.checkpoint.type='ExactCheckpointHook'"
        )

"""What can be known to be wrong before the first step, said before the first step."""

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmairl.data.training import require_a_batch
from mmairl.errors import UserError
from mmairl.hooks.checkpoint import ExactCheckpointHook
from mmairl.hooks.momentum import MomentumHook
from mmairl.hooks.queue import QueueHook
from mmairl.models.batchnorm import SplitBN, SyncBN
from mmairl.network import network_of
from mmairl.registry import HOOKS


@HOOKS.register_module()
class PreflightHook(Hook):
    """Refuses a run that could only fail later or, worse, train something else in silence."""

    priority = 'HIGHEST'

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        batch = runner.train_dataloader.batch_size or runner.train_dataloader.batch_sampler.batch_size
        _check_parts(runner)
        total = batch * get_world_size() * runner.optim_wrapper._accumulative_counts
        require_a_batch(runner.train_dataloader)
        _check_norm(model, batch)
        if getattr(model, 'shuffle_bn', False):
            runner.logger.info(_shuffle_in_words(model))
        if getattr(model, 'teacher', None) is not None and not _has(runner, MomentumHook):
            raise UserError("the teacher never moves; set default_hooks.momentum=dict(type='MomentumHook')")
        queue = getattr(model, 'queue', None)
        if queue is not None:
            _check_queue(runner, queue.length, total)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """A checkpoint fits key by key and shape by shape, or is refused: mmengine would load what happens to fit."""
        model = network_of(runner)
        ours, theirs = model.state_dict(), checkpoint.get('state_dict', {})
        differing = [key for key in ours if key in theirs and ours[key].shape != theirs[key].shape]
        missing, extra = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
        if differing:
            key = differing[0]
            raise UserError(
                f'the checkpoint is of another architecture: {key} is {tuple(theirs[key].shape)} there and '
                f'{tuple(ours[key].shape)} in the config ({len(differing)} such tensors); use the config that made it'
            )
        if missing or extra:
            raise UserError(
                f'the checkpoint does not fit the config: {len(missing)} tensors are missing ({missing[:1]}) and '
                f'{len(extra)} are not in the network ({extra[:1]}); use the config that made it'
            )


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


def _check_norm(model: nn.Module, batch: int) -> None:
    norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    joined = all(isinstance(layer, SyncBN) for layer in norms)
    if norms and batch * (get_world_size() if joined else 1) == 1:
        raise UserError(
            'a batch of one has no batch statistics, and the network has batch norm; raise total_batch_size'
        )


def _has(runner: Runner, kind: type[Hook]) -> bool:
    return any(isinstance(hook, kind) for hook in runner.hooks)


def _check_queue(runner: Runner, length: int, total: int) -> None:
    if length < total:
        raise UserError(
            f'the queue holds {length} keys and one step brings {total}; '
            'raise model.queue.length or lower total_batch_size'
        )
    if not _has(runner, QueueHook):
        raise UserError("the network has a queue that nothing fills; set default_hooks.queue=dict(type='QueueHook')")


def _shuffle_in_words(model: nn.Module) -> str:
    parts = {max(1, layer.replicas // get_world_size()) for layer in model.modules() if isinstance(layer, SplitBN)} or {
        1
    }
    return f'ShuffleBN: the key batch is permuted across {get_world_size()} processes of {max(parts)} virtual replicas each'

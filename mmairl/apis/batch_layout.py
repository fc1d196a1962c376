"""A plan that keeps a config's schedule on other hardware: the same images a step, by accumulation."""

from mmengine.config import Config

from mmairl.errors import UserError


def plan(cfg: Config, gpus: int, per_gpu: int) -> tuple[int, str]:
    """The accumulation that keeps the total batch, and with it the learning rate and the number of steps; and a text.

    The text says what stays, and what differs all the same: batch norm sees the images of one accumulated step, not of all.
    """
    total, once = cfg.total_batch_size, gpus * per_gpu
    if once > total:
        raise UserError(
            f'{gpus} GPUs x {per_gpu} images are {once} a step, more than the {total} of the schedule; '
            f'lower the per-GPU batch to {max(1, total // gpus)} or less'
        )
    if total % once:
        fits = [size for size in range(per_gpu, 0, -1) if total % (gpus * size) == 0]
        remedy = (
            f'try a per-GPU batch of {fits[0]}' if fits else 'use a number of GPUs that divides it'
        )
        raise UserError(
            f'{gpus} GPUs x {per_gpu} images = {once} do not divide the total batch of {total}; {remedy}'
        )
    steps, first, warm_up = total // once, cfg.param_scheduler[0], 'none'
    if first.type in ('WarmUpLR', 'LinearLR'):
        warm_up = f'{first.end} {"epochs" if first.get("by_epoch", True) else "iterations"}'
    lines = [
        f'total batch    {total} = {gpus} GPUs x {per_gpu} images x {steps} accumulated steps',
        f'learning rate  {cfg.optim_wrapper.optimizer.lr:g} (unchanged: the total batch is)',
        f'warm-up        {warm_up} (unchanged)',
    ]
    note = 'note           '
    if steps > 1 and 'BN' in str(cfg.model.backbone.get('norm_cfg')):
        seen = f'batch statistics are over {once} images a step instead of {total}'
        lines.append(f'{note}{seen}; nothing can make them equal')
    if steps > 1 and 'queue' in cfg.model and cfg.model.queue is None:
        lines.append(
            f'{note}terms over the batch (negatives in it, its spread) see one accumulated step as well'
        )
    return steps, '\n'.join(lines)


def follow(cfg: Config, accumulation: int) -> None:
    """Set the plan's accumulation in the config."""
    cfg.train_dataloader.pop('batch_size', None)
    cfg.optim_wrapper.accumulative_counts = accumulation

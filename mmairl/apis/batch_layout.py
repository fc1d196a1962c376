"""Keep the total batch of a config on other hardware by accumulating gradients."""

from mmengine.config import Config

from mmairl.errors import UserError


def plan(cfg: Config, gpus: int, per_gpu: int) -> tuple[int, str]:
    """Return the number of accumulated steps that keeps the total batch, and a description of the layout.

    The learning rate and the number of optimizer steps stay the same. The statistics of batch norm come from the images of
    one accumulated step.

    Args:
        cfg: The config.
        gpus: Number of GPUs.
        per_gpu: Number of images that each GPU processes at once.

    Raises:
        UserError: 'bad-batch' if the images processed at once exceed or do not divide the total batch.
    """
    total = cfg.total_batch_size
    at_once = gpus * per_gpu
    if at_once > total:
        raise UserError(
            f"--per-gpu: {gpus} GPUs x {per_gpu} images exceed the total batch ('{total}'); use "
            f'{max(1, total // gpus)} or less',
            code='bad-batch',
        )
    if total % at_once:
        fits = [size for size in range(per_gpu, 0, -1) if total % (gpus * size) == 0]
        advice = f'use {fits[0]}' if fits else 'use a number of GPUs that divides it'
        raise UserError(
            f"--per-gpu: {gpus} GPUs x {per_gpu} images do not divide the total batch ('{total}'); {advice}",
            code='bad-batch',
        )
    steps = total // at_once
    first = cfg.param_scheduler[0]
    warm_up = 'none'
    if first.type in ('WarmUpLR', 'LinearLR'):
        warm_up = f'{first.end} {"epochs" if first.get("by_epoch", True) else "iterations"}'
    lines = [
        f'total batch    {total} = {gpus} GPUs x {per_gpu} images x {steps} accumulated steps',
        f'learning rate  {cfg.optim_wrapper.optimizer.lr:g} (unchanged: the total batch is)',
        f'warm-up        {warm_up} (unchanged)',
    ]
    if steps > 1 and 'BN' in str(cfg.model.backbone.get('norm_cfg')):
        lines.append(
            f'note           batch statistics are over {at_once} images instead of {total}; accumulation cannot change that'
        )
    if steps > 1 and 'queue' in cfg.model and cfg.model.queue is None:
        lines.append(
            'note           loss terms over the batch, such as negatives, are over one accumulated step'
        )
    return steps, '\n'.join(lines)


def follow(cfg: Config, accumulation: int) -> None:
    """Set the number of accumulated steps in the config."""
    cfg.train_dataloader.pop('batch_size', None)
    cfg.optim_wrapper.accumulative_counts = accumulation

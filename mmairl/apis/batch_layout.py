"""Plan gradient accumulation, so that a config keeps its total batch size on other hardware."""

from mmengine.config import Config

from mmairl.errors import UserError


def plan(cfg: Config, gpus: int, per_gpu: int) -> tuple[int, str]:
    """Return the number of accumulated steps that keeps the total batch size, and a text that describes the batch layout.

    Accumulation changes neither the learning rate nor the number of optimizer steps. It does change the statistics of batch
    norm, which come from the images of a single accumulated step.

    Args:
        cfg: The config.
        gpus: Number of GPUs.
        per_gpu: Number of images that each GPU processes at once.

    Raises:
        UserError: 'bad-batch' if `gpus * per_gpu` exceeds the total batch size or does not divide it.
    """
    total = cfg.total_batch_size
    at_once = gpus * per_gpu
    if at_once > total or total % at_once:
        largest = min(per_gpu, total // gpus)
        fits = [size for size in range(largest, 0, -1) if total % (gpus * size) == 0]
        advice = (
            f'set --per-gpu to {fits[0]}'
            if fits
            else 'use a number of GPUs that divides the total batch'
        )
        fault = 'exceed' if at_once > total else 'do not divide'
        raise UserError(
            f"--per-gpu: {gpus} GPUs x {per_gpu} images {fault} the total batch ('{total}'); {advice}",
            code='bad-batch',
        )
    steps = total // at_once
    warm_up = 'none'
    first = (cfg.get('param_scheduler') or [{}])[0]
    if first.get('type') in ('WarmUpLR', 'LinearLR'):
        warm_up = f'{first.end} {"epochs" if first.get("by_epoch", True) else "iterations"}'
    lines = [
        f'total batch    {total} = {gpus} GPUs x {per_gpu} images x {steps} accumulated steps',
        f'learning rate  {cfg.optim_wrapper.optimizer.lr:g} (unchanged, because the total batch is unchanged)',
        f'warm-up        {warm_up} (unchanged)',
    ]
    if steps > 1 and 'BN' in str(cfg.model.backbone.get('norm_cfg')):
        lines.append(
            'note           batch statistics are over the images of one accumulated step; without accumulation, they would be '
            f'over {steps} times as many images'
        )
    if steps > 1 and 'queue' in cfg.model and cfg.model.queue is None:
        lines.append(
            'note           a loss that compares images with each other compares only those of the same accumulated step'
        )
    return steps, '\n'.join(lines)


def follow(cfg: Config, accumulation: int) -> None:
    """Set the number of accumulated steps in the config."""
    cfg.train_dataloader.pop('batch_size', None)
    cfg.optim_wrapper.accumulative_counts = accumulation

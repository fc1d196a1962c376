"""A plan that keeps a config's schedule on other hardware: the same images a step, by accumulation."""

from dataclasses import dataclass

from mmengine.config import Config

from mmairl.errors import UserError


@dataclass(frozen=True)
class Plan:
    """How `gpus` processes of `per_gpu` images reach the config's total batch, and what stays as it was."""

    gpus: int
    per_gpu: int
    accumulation: int
    total: int
    lr: float
    warm_up: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f'total batch    {self.total} = {self.gpus} GPUs x {self.per_gpu} images x {self.accumulation} accumulated steps',
            f'learning rate  {self.lr:g} (unchanged: the total batch is)',
            f'warm-up        {self.warm_up} (unchanged)',
        ]
        return '\n'.join([*lines, *(f'note           {note}' for note in self.notes)])


def plan(cfg: Config, gpus: int, per_gpu: int) -> Plan:
    """The accumulation that keeps the total batch, and with it the learning rate and the number of steps.

    What differs all the same is said in the notes: batch norm sees the images of one accumulated step, not of all.
    """
    total, once = cfg.total_batch_size, gpus * per_gpu
    if gpus < 1 or per_gpu < 1:
        raise UserError(f'{gpus} GPUs of {per_gpu} images are no plan; give one or more of each')
    if once > total:
        raise UserError(
            f'{gpus} GPUs x {per_gpu} images are {once} a step, more than the {total} of the schedule; '
            f'lower the per-GPU batch to {max(1, total // gpus)} or less'
        )
    if total % once:
        fits = [size for size in range(per_gpu, 0, -1) if total % (gpus * size) == 0]
        remedy = f'try a per-GPU batch of {fits[0]}' if fits else 'use a number of GPUs that divides it'
        raise UserError(f'{gpus} GPUs x {per_gpu} images = {once} do not divide the total batch of {total}; {remedy}')
    steps, notes = total // once, []
    if steps > 1 and 'BN' in str(cfg.model.backbone.get('norm_cfg')):
        notes.append(f'batch statistics are over {once} images a step instead of {total}; nothing can make them equal')
    if steps > 1 and 'queue' in cfg.model and cfg.model.queue is None:
        notes.append('terms over the batch (negatives in it, its spread) see one accumulated step as well')
    first = cfg.param_scheduler[0]
    warm_up = (
        f'{first.end} {"epochs" if first.get("by_epoch", True) else "iterations"}'
        if first.type in ('WarmUpLR', 'LinearLR')
        else 'none'
    )
    return Plan(gpus, per_gpu, steps, total, cfg.optim_wrapper.optimizer.lr, warm_up, tuple(notes))


def follow(cfg: Config, made: Plan) -> None:
    """Set what the plan says in the config."""
    cfg.train_dataloader.pop('batch_size', None)
    cfg.optim_wrapper.accumulative_counts = made.accumulation

"""The health of a run while it runs: whether the embeddings collapse, the teacher follows, the weights move."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mmairl.analysis.geometry import singular_values
from mmairl.analysis.health import QUANTITIES, sentence, state
from mmairl.errors import UserError
from mmairl.models.gather import gather
from mmairl.models.heads import unit
from mmairl.models.siamese import Siamese, pooled
from mmairl.network import network_of
from mmairl.registry import HOOKS

ROWS = 256  # images of the joined batch that ranks and similarities are taken of, so that a large batch costs no more
FEWEST = 16  # images below which a rank would say more about the batch than about the network


@dataclass
class Measurement:
    """What one step leaves behind; nothing of it outlives the step, and no hook of ours stands between two of them."""

    handles: list[RemovableHandle] = field(default_factory=list)
    features: Tensor | None = None
    embeddings: tuple[dict[int, Tensor], dict[int, Tensor], Tensor | None] | None = None
    before: dict[str, list[Tensor]] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)


SETTLED = 1000  # iterations, or a tenth of a shorter run: an untrained network's embeddings look collapsed


@HOOKS.register_module()
class HealthHook(Hook):
    """Draws curves `health_...` every `interval` iterations; warns when a quantity turns bad, once until it is good again.

    Embeddings and features are those of the joined batch of all processes, as they enter the head; norms and times are
    the first process's (gradients are equal in all of them). Under accumulation the step that the interval falls into
    is measured, with the embeddings of its last part. Training is the same to the last bit with it and without.
    """

    priority = 'ABOVE_NORMAL'  # before QueueHook writes this step's keys over the negatives that it was compared with

    def __init__(self, interval: int = 50) -> None:
        if interval < 1:
            raise UserError(f'HealthHook.interval={interval} measures nothing; set 1 or more')
        self.interval = interval
        self.measured: Measurement | None = None
        self.alarmed: set[str] = set()

    def before_train(self, runner: Runner) -> None:
        self.start = runner.iter

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None) -> None:
        if not due(runner.iter + 1, runner.optim_wrapper._accumulative_counts, self.interval):
            return
        model = network_of(runner)
        found = self.measured = Measurement()
        found.handles += [model.backbone.register_forward_hook(_keep_features(found))]
        if isinstance(model, Siamese):
            found.handles += [model.head.register_forward_hook(_keep_embeddings(found))]
        watch = getattr(runner.optim_wrapper, 'watch', None)
        if watch is not None:  # where weights are in shards, each process measures its own
            found.handles += watch(stages(model), model, found.values)
        elif is_main_process():
            if getattr(model, 'teacher', None) is not None:
                found.values['teacher_distance'] = teacher_distance(model.teacher, model)
            found.handles += _around_the_step(runner.optim_wrapper.optimizer, model, found)

    @torch.no_grad()
    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        found, self.measured = self.measured, None
        if found is None:
            return
        for handle in found.handles:
            handle.remove()
        of_batch = _of_batch(found)
        if not is_main_process():
            return
        model = network_of(runner)
        values = read_back({**of_batch, **found.values})
        if found.embeddings and getattr(model, 'queue', None) is not None:
            values.update(_of_queue(runner, model.queue, len(next(iter(found.embeddings[1].values())))))
        values.update(self._of_times(runner))
        for name, value in values.items():
            runner.message_hub.update_scalar(f'health/{name}', value)
        # Curves, not words in the log's every line: there are three dozen.
        runner.visualizer.add_scalars({f'health_{name}': value for name, value in values.items()}, step=runner.iter + 1)
        if runner.iter + 1 > min(SETTLED, runner.max_iters / 10):
            self._tell(runner, {**values, 'loss': runner.message_hub.get_scalar('train/loss').current()})

    def _of_times(self, runner: Runner) -> dict[str, float]:
        """The share of the last steps' time that went by waiting for data; a run's first step, which starts it all, aside."""
        steps = min(self.interval, runner.iter - self.start - 1)
        if steps < 1 or 'train/time' not in runner.message_hub.log_scalars:
            return {}
        waited, whole = (runner.message_hub.get_scalar(f'train/{name}').data[0] for name in ('data_time', 'time'))
        return dict(data_share=float(waited[-1 - steps : -1].sum() / whole[-steps:].sum()))

    def _tell(self, runner: Runner, values: dict[str, float]) -> None:
        """A warning where a quantity turns bad, and the all-clear as loudly; in between, silence."""
        for quantity in QUANTITIES:
            if quantity.name not in values:
                continue
            value, alarmed = values[quantity.name], quantity.name in self.alarmed
            now = state(quantity, value)
            if now == 'bad' and not alarmed:
                self.alarmed.add(quantity.name)
                runner.logger.warning(f'health, iteration {runner.iter + 1}: {sentence(quantity, value)}')
            elif now == 'good' and alarmed:
                self.alarmed.remove(quantity.name)
                runner.logger.warning(
                    f'health, iteration {runner.iter + 1}: all clear, {quantity.label} is normal again at {value:.3g}'
                )


def due(iteration: int, every: int, interval: int) -> bool:
    """Whether a step of `every` iterations ends with this one and is the last to end by a multiple of the interval.

    >>> [i for i in range(1, 13) if due(i, 1, 5)], [i for i in range(1, 13) if due(i, 2, 5)]
    ([5, 10], [4, 10])
    """
    return iteration % every == 0 and (iteration + every - 1) // interval > (iteration - 1) // interval


def _keep_features(found: Measurement):
    def keep(module: nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
        if found.features is None:  # the first view's
            found.features = pooled(output).detach()

    return keep


def _keep_embeddings(found: Measurement):
    def keep(module: nn.Module, inputs: tuple, output: dict) -> None:
        q, k, negatives = inputs
        q, k = ({view: unit(rows.detach()) for view, rows in side.items()} for side in (q, k))
        found.embeddings = q, k, negatives

    return keep


def _around_the_step(optimizer: Optimizer, model: nn.Module, found: Measurement) -> list[RemovableHandle]:
    """Gradients exist until the step and updates show after it, so both are taken right there."""
    parts = stages(model)

    @torch.no_grad()
    def before(*_: object) -> None:
        for name, weights in parts.items():
            learning = parts[name] = [weight for weight in weights if weight.grad is not None]
            if learning:
                gradient = norm([weight.grad for weight in learning])
                # a fused optimizer takes the loss scale out itself, in the step; the others are given gradients without it
                scale = getattr(optimizer, 'grad_scale', None)
                found.values[f'gradient_norm_{name}'] = gradient if scale is None else gradient / scale
                found.values[f'weight_norm_{name}'] = norm(learning)
                found.before[name] = [weight.detach().clone() for weight in learning]

    @torch.no_grad()
    def after(*_: object) -> None:
        for name, old in found.before.items():
            change = norm(torch._foreach_sub(parts[name], old)) / norm(old).clamp_min(1e-12)
            found.values[f'update_ratio_{name}'] = change
        for name, total in (('gradient_norm', torch.linalg.vector_norm), ('update_ratio', torch.max)):
            of_stages = [value for key, value in found.values.items() if key.startswith(f'{name}_')]
            if of_stages:
                found.values[name] = total(torch.stack(of_stages))
        found.before.clear()

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


def _of_batch(found: Measurement) -> dict[str, Tensor]:
    """What the joined batch says; all processes take part in joining it and the first goes on."""
    if found.embeddings is None:
        features = _joined(found.features)
        return {} if len(features) < FEWEST else dict(rank_features=effective_rank(features[:ROWS]))
    q, k, negatives = found.embeddings
    query = next(iter(q))
    key = next(view for view in k if view != query)
    features, query, key = (_joined(rows) for rows in (found.features, q[query], k[key]))
    values = dict(spread_query=spread(query), spread_key=spread(key))
    if len(query) >= FEWEST:
        values.update(rank_features=effective_rank(features[:ROWS]), rank_embeddings=effective_rank(query[:ROWS]))
    return {**values, **similarities(query[:ROWS], key[:ROWS], negatives)}


def _joined(rows: Tensor) -> Tensor:
    return gather(rows.to(torch.promote_types(rows.dtype, torch.float32)))


def _of_queue(runner: Runner, queue: nn.Module, batch: int) -> dict[str, float]:
    """How long the queue takes to be renewed: in steps, in epochs, and in the teacher's time constants 1 / (1 - m)."""
    iterations = queue.length / (batch * get_world_size())
    steps = iterations / runner.optim_wrapper._accumulative_counts
    values = dict(
        queue_steps=steps,
        queue_epochs=iterations / len(runner.train_dataloader),
        queue_filled=queue.filled / queue.length,
    )
    if 'train/momentum' in runner.message_hub.log_scalars:
        values['queue_drift'] = steps * (1 - float(runner.message_hub.get_scalar('train/momentum').current()))
    return values


def read_back(values: dict[str, Tensor]) -> dict[str, float]:
    """All numbers in one copy from the device; offloaded shards have theirs on the host."""
    if not values:
        return {}
    device = max((value.device for value in values.values()), key=lambda device: device.type != 'cpu')
    return dict(zip(values, torch.stack([value.to(device, torch.float64) for value in values.values()]).tolist()))


def spread(embeddings: Tensor) -> Tensor:
    """The mean standard deviation of a unit embedding's coordinates over 1/sqrt(d), as in `geometry`, on the device."""
    return embeddings.std(dim=0).mean() * embeddings.shape[1] ** 0.5


def effective_rank(rows: Tensor) -> Tensor:
    """RankMe, as in `geometry`, on the device; rows that are not finite have none, and would stop the decomposition."""
    values = singular_values(rows.nan_to_num(0, 0, 0))
    share = values / values.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return torch.exp(torch.special.entr(share).sum()) + 0 * rows.sum()


def similarities(q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
    """Cosines of queries with their own keys and with negatives: the queue's, or else the other images' keys.

    The hardest negative is each query's nearest; `contrast` is how much nearer its own key is than a negative on average.
    """
    positive = (q * k).sum(dim=1).mean()
    if negatives is None:  # cut behind each diagonal entry, the rows of the next cut end with it: all but the own keys
        n = len(q)
        cosines = (q @ k.T).flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)
    else:
        cosines = q @ negatives.T.to(q.dtype)
    if cosines.shape[1] == 0:
        return dict(positive=positive)
    negative, hardest = cosines.mean(), cosines.amax(dim=1).mean()
    return dict(positive=positive, negative=negative, hardest_negative=hardest, contrast=positive - negative)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all of them as one vector, by the multi-tensor form."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))


@torch.no_grad()
def teacher_distance(teacher: nn.Module, student: nn.Module) -> Tensor:
    """|T - S| / |S| over the parameters that the teacher has."""
    names, own = zip(*teacher.named_parameters())
    theirs = [student.get_parameter(name).detach() for name in names]
    return norm(torch._foreach_sub(list(own), theirs)) / norm(theirs)


def stages(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The student's parameters by part, and the backbone's by stage, in the order in which an image passes them."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, child in model.named_children():
        if name == 'backbone':
            for stage, weight in _by_stage(child):
                parts.setdefault(stage, []).append(weight)
        elif name != 'teacher' and any(True for _ in child.parameters()):
            parts[name] = list(child.parameters())
    return parts


def _by_stage(backbone: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """layer1, stage2 and the like are stages; a list of blocks is cut into quarters; around them are stem and top."""
    passed = False
    for name, weight in backbone.named_parameters():
        first, *rest = name.split('.')
        part = getattr(backbone, first)
        if isinstance(part, nn.ModuleList | nn.Sequential) and not first[-1].isdigit() and len(part) >= 4:
            first = f'{first}_{_quarter(int(rest[0]), len(part))}'
        elif not (first[-1].isdigit() and isinstance(part, nn.Module) and any(True for _ in part.children())):
            yield 'top' if passed else 'stem', weight
            continue
        passed = True
        yield first, weight


def _quarter(block: int, blocks: int) -> str:
    """Which of four runs of blocks, by its first and last: blocks 0-2 of 12, or block 0 of 4.

    >>> [_quarter(block, 12) for block in (0, 2, 3, 11)], _quarter(1, 4)
    (['0-2', '0-2', '3-5', '9-11'], '1')
    """
    quarter = 4 * block // blocks
    first, last = -(-quarter * blocks // 4), -(-(quarter + 1) * blocks // 4) - 1
    return f'{first}-{last}' if last > first else f'{first}'

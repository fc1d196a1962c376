"""Monitor the health of a run: collapsed embeddings, the distance between teacher and student, and sizes of weight updates."""

from itertools import product

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.optim import Optimizer

from mmairl.engine.health import QUANTITIES, advice, distance, embedding_metrics, state
from mmairl.engine.hooks.after_step import accumulated
from mmairl.models.backbones import parameters_by_stage, pooled
from mmairl.models.heads.base import unit
from mmairl.models.processes import gather, network_of, norms
from mmairl.models.siamese import Siamese
from mmairl.registry import HOOKS

# HealthHook does not warn during the first tenth of a run, because untrained embeddings look collapsed. These are the smallest
# and the largest number of iterations without warnings.
SILENT = (50, 1000)


@HOOKS.register_module()
class HealthHook(Hook):
    """Measure the health of a run, log it as the curves `health_...`, and warn once about each quantity that turns bad.

    The measured embeddings are the inputs of the head in all processes. With gradient accumulation, the hook measures the last
    optimizer step that ends at or before a multiple of `interval`, using the embeddings of its last batch. Training is bit for
    bit the same as without the hook.

    Args:
        interval: Iterations between two measurements. Default: 50.
    """

    # This hook must run before QueueHook, which overwrites negatives of this step with new keys.
    priority = 'ABOVE_NORMAL'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self.recorder: Recorder | None = None
        self.bad: set[str] = set()

    def before_train(self, runner: Runner) -> None:
        self.start = runner.iter

    def before_train_iter(self, runner: Runner, **_: object) -> None:
        if due(runner.iter + 1, accumulated(runner), self.interval):
            self.recorder = Recorder(network_of(runner), runner.optim_wrapper.optimizer)

    @torch.no_grad()
    def after_train_iter(self, runner: Runner, outputs: dict, **_: object) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        recorder.remove()
        batch = recorder.joined_batch()
        head_values = page_values(recorder.model, outputs)
        if not is_main_process():
            return
        values = {
            **embedding_metrics(*batch),
            **recorder.weight_metrics(),
            **queue_metrics(recorder.model),
            **self._time_metrics(runner),
            **head_values,
        }
        for name, value in values.items():
            runner.message_hub.update_scalar(f'health/{name}', value)
        # The values go to the visualizer but not to the log, because each log line would become a dozen values longer.
        runner.visualizer.add_scalars(
            {f'health_{name}': value for name, value in values.items()}, step=runner.iter + 1
        )
        if runner.iter >= min(max(SILENT[0], runner.max_iters / 10), SILENT[1]):
            values['loss'] = runner.message_hub.get_scalar('train/loss').current()
            self._warn(runner, values)

    def _time_metrics(self, runner: Runner) -> dict[str, float]:
        """Return the fraction of recent step time spent waiting for data, excluding the first step (worker start-up)."""
        steps = min(self.interval, runner.iter - self.start - 1)
        if steps < 1 or 'train/time' not in runner.message_hub.log_scalars:
            return {}
        waited = runner.message_hub.get_scalar('train/data_time').data[0]
        total = runner.message_hub.get_scalar('train/time').data[0]
        return dict(data_share=float(waited[-1 - steps : -1].sum() / total[-steps:].sum()))

    def _warn(self, runner: Runner, values: dict[str, float]) -> None:
        for quantity in QUANTITIES:
            value = values.get(quantity.name)
            if value is None or quantity.name in self.bad or state(quantity, value) != 'bad':
                continue
            self.bad.add(quantity.name)
            runner.logger.warning(f'health, iteration {runner.iter + 1}: {advice(quantity, value)}')


def due(iteration: int, every: int, interval: int) -> bool:
    """Return whether HealthHook measures this iteration.

    It measures the last iteration of an optimizer step, if that step is the last one to end at or before a multiple of
    `interval`. An optimizer step has `every` iterations.

    >>> [i for i in range(1, 13) if due(i, 1, 5)], [i for i in range(1, 13) if due(i, 2, 5)]
    ([5, 10], [4, 10])
    """
    if not interval or iteration % every:
        return False
    return (iteration + every - 1) // interval > (iteration - 1) // interval


def page_values(model: nn.Module, outputs: dict) -> dict[str, float]:
    """Return the outputs that a head lists in its `page_metrics`, averaged over all processes."""
    names = getattr(getattr(model, 'head', None), 'page_metrics', ())
    if not names:
        return {}
    values = torch.stack([outputs[name].double() for name in names])
    means = gather(values[None]).mean(dim=0)
    return {f'head_{name}': value for name, value in zip(names, means.tolist())}


def queue_metrics(model: nn.Module) -> dict[str, float]:
    queue = getattr(model, 'queue', None)
    return dict(queue_filled=queue.filled / queue.length) if hasattr(queue, 'filled') else {}


class Recorder:
    """Record an optimizer step: the features of the first view, the inputs of the head, and norms of gradients and weights."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.features: Tensor | None = None
        # The queries, the keys and the negatives of the step.
        self.embeddings: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.teacher_distance: Tensor | None = None
        # Three tensors with one number per weight tensor: the norms of the gradients, of the weights and of the weight changes.
        self.norms: list[Tensor] = []
        self.handles = [
            model.backbone.register_forward_hook(self._keep_features),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        if isinstance(model, Siamese):
            self.handles.append(model.head.register_forward_hook(self._keep_embeddings))

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def _keep_features(self, module: nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
        if self.features is None:
            self.features = pooled(output).detach()

    def _keep_embeddings(self, module: nn.Module, inputs: tuple, output: dict) -> None:
        q, k, negatives = inputs
        query, key = next((i, j) for i, j in product(q, k) if i != j)
        self.embeddings = q[query].detach(), k[key].detach(), negatives

    @torch.no_grad()
    def _before_step(self, *_: object) -> None:
        self.stages = []
        self.weights = []
        for stage, part in parameters_by_stage(self.model).items():
            learning = [weight for weight in part if weight.grad is not None]
            self.stages += [stage] * len(learning)
            self.weights += learning
        self.norms = [norms([weight.grad for weight in self.weights]), norms(self.weights)]
        self.before = [weight.detach().clone() for weight in self.weights]
        pairs = getattr(getattr(self.model, 'teacher', None), 'pairs', None)
        if pairs is not None:
            self.teacher_distance = distance(*pairs(self.model))

    @torch.no_grad()
    def _after_step(self, *_: object) -> None:
        self.norms.append(norms(torch._foreach_sub(self.weights, self.before)))
        del self.before

    def joined_batch(self) -> tuple[Tensor | None, ...]:
        """Return the features, queries and keys of all processes, and the negatives.

        All processes must call this method together.
        """
        features = _joined(self.features)
        if self.embeddings is None:
            return features, None, None, None
        q, k, negatives = self.embeddings
        shown = getattr(self.model.head, 'queue_role', 'negatives') == 'negatives'
        return features, unit(_joined(q)), unit(_joined(k)), negatives if shown else None

    def weight_metrics(self) -> dict[str, float]:
        """Return the norm of all gradients, the largest relative change of a stage, and the teacher's distance.

        If float16 skipped the optimizer step, only the teacher's distance is returned.
        """
        values = {}
        if self.teacher_distance is not None:
            values['teacher_distance'] = self.teacher_distance.item()
        if len(self.norms) < 3:
            return values
        by_parameter = torch.stack([norm.double() for norm in self.norms]).cpu()
        ratios = []
        for stage in dict.fromkeys(self.stages):
            members = torch.tensor([name == stage for name in self.stages])
            _, weight, change = (vector_norm(row[members]).item() for row in by_parameter)
            ratios.append(change / max(weight, 1e-12))
        gradient = vector_norm(by_parameter[0]).item()
        return dict(values, gradient_norm=gradient, update_ratio=max(ratios))


def _joined(rows: Tensor) -> Tensor:
    return gather(rows.to(torch.promote_types(rows.dtype, torch.float32)))

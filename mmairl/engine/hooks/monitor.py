"""Monitor the health of a run: collapsed embeddings, the distance between teacher and student, and sizes of weight updates."""

import math
from itertools import product
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mmairl.engine.health import QUANTITIES, advice, distance, embedding_metrics, state
from mmairl.engine.hooks.after_step import accumulated, step_taken
from mmairl.models.backbones import parameters_by_stage, pooled
from mmairl.models.heads.base import unit
from mmairl.models.processes import gather, network_of
from mmairl.models.siamese import Siamese
from mmairl.registry import HOOKS

# HealthHook does not warn during the first tenth of a run, and at most for this number of iterations, because untrained
# embeddings look collapsed.
SILENT = 1000


@HOOKS.register_module()
class HealthHook(Hook):
    """Measure the health of a run, log it as the curves `health_...`, and warn once about each quantity that turns bad.

    The measured embeddings are the inputs of the head in all processes. With gradient accumulation, they are those of the last
    batch of an optimizer step. Training is bit for bit the same as without the hook.

    Args:
        interval: Iterations between two measurements. Default: 50.
    """

    # This hook must run before MomentumHook and QueueHook, which change the teacher and the negatives of this step.
    priority = 'ABOVE_NORMAL'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self.bad: set[str] = set()
        self.handles: list[RemovableHandle] = []

    def before_train_iter(self, runner: Runner, **_: object) -> None:
        steps = accumulated(runner)
        # A step is measured when it ends, so the interval is a multiple of its iterations.
        if not self.every_n_train_iters(runner, math.ceil(self.interval / steps) * steps):
            return
        model = network_of(runner)
        self.features: Tensor | None = None
        self.embeddings: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.handles = [model.backbone.register_forward_hook(self._keep_features)]
        if isinstance(model, Siamese):
            self.handles.append(model.head.register_forward_hook(self._keep_embeddings))
        self.weights = list(parameters_by_stage(model).values())
        self.before = [[weight.detach().clone() for weight in part] for part in self.weights]

    def _keep_features(self, module: nn.Module, inputs: tuple, output: Tensor | tuple) -> None:
        """Keep the pooled features of the first pass, which begins with the first view."""
        if self.features is None:
            # In training, a masked backbone such as MAE's returns tokens, masks and indices.
            masked = isinstance(output, tuple) and not output[-1].is_floating_point()
            self.features = pooled(output[0] if masked else output).detach()

    def _keep_embeddings(self, module: nn.Module, inputs: tuple, output: dict) -> None:
        """Keep the queries and the keys of one pair of views, and the negatives."""
        q, k, negatives = inputs
        query, key = next((i, j) for i, j in product(q, k) if i != j)
        self.embeddings = q[query].detach(), k[key].detach(), negatives

    @torch.no_grad()
    def after_train_iter(self, runner: Runner, outputs: dict, **_: object) -> None:
        if not self.handles:
            return
        for handle in self.handles:
            handle.remove()
        self.handles = []
        values = self.measure(runner, outputs)
        self.before = []
        if not is_main_process():
            return
        for name, value in values.items():
            runner.message_hub.update_scalar(f'health/{name}', value)
        # The values go to the visualizer but not to the log, because each log line would become a dozen values longer.
        curves = {f'health_{name}': value for name, value in values.items()}
        runner.visualizer.add_scalars(curves, step=runner.iter + 1)
        if runner.iter >= min(max(50, runner.max_iters / 10), SILENT):
            self._warn(runner, {**values, 'loss': outputs['loss'].item()})

    def measure(self, runner: Runner, outputs: dict) -> dict[str, float]:
        """Return the measured values. All processes must call this method together."""
        model = network_of(runner)
        head = getattr(model, 'head', None)
        features = self.features
        q = k = negatives = None
        if self.embeddings is not None:
            q, k, negatives = self.embeddings
            features = features[: len(q)]
            q, k = unit(joined(q)), unit(joined(k))
            if getattr(head, 'queue_role', 'negatives') != 'negatives':
                negatives = None
        values: dict[str, Any] = embedding_metrics(joined(features), q, k, negatives)
        for name in getattr(head, 'page_metrics', ()):
            values[f'head_{name}'] = gather(outputs[name].double().view(1)).mean()
        if step_taken(runner):
            values['update_ratio'] = max(map(distance, self.weights, self.before))
        if hasattr(getattr(model, 'teacher', None), 'pairs'):
            values['teacher_distance'] = distance(*model.teacher.pairs(model))
        if hasattr(getattr(model, 'queue', None), 'filled'):
            values['queue_filled'] = model.queue.filled / model.queue.length
        scalars = runner.message_hub.log_scalars
        # The first step of a run also starts the data workers.
        waited, total = (
            scalars[name].data[0][1:][-self.interval :].sum() if name in scalars else 0
            for name in ('train/data_time', 'train/time')
        )
        if total:
            values['data_share'] = waited / total
        return {name: float(value) for name, value in values.items()}

    def _warn(self, runner: Runner, values: dict[str, float]) -> None:
        for quantity in QUANTITIES:
            value = values.get(quantity.name)
            if value is None or quantity.name in self.bad or state(quantity, value) != 'bad':
                continue
            self.bad.add(quantity.name)
            runner.logger.warning(f'health, iteration {runner.iter + 1}: {advice(quantity, value)}')


def joined(rows: Tensor) -> Tensor:
    """Return the rows of all processes in float32 or more."""
    return gather(rows.to(torch.promote_types(rows.dtype, torch.float32)))

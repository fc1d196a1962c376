"""DeepSpeed's ZeRO for models that do not fit otherwise, through mmengine's strategies, with the same numbers as without.

mmengine's DeepSpeedStrategy trains these methods wrong in silence: LARS sees shards for layers, a teacher under stage 3 never
moves, and in half precision it rounds its steps away. `ZeroStrategy` mends that (lars.py, teacher.py), keeps the
runs' hooks and checkpoints as they are, and starts on CPUs as well. A checkpoint is one file, the same as an ordinary run's:
whole weights and whole optimizer state in float32, put together in the first process's memory. So it resumes in any number
of processes, in any stage and in none, and every tool reads it; what it asks for is host memory on one machine.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from mmengine._strategy import BaseStrategy, DeepSpeedStrategy
from mmengine.config import ConfigDict
from mmengine.device import get_device
from mmengine.dist import init_dist
from torch import nn

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.errors import UserError
from mmairl.models.teacher import Teacher
from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.optim.lars import LARS
from mmairl.registry import STRATEGIES
from mmairl.sharding.copy import PlainCopy
from mmairl.sharding.health import ShardWatch
from mmairl.sharding.lars import ShardedUpdate
from mmairl.sharding.layout import BUCKET, Layout
from mmairl.sharding.model import ZeroModel, normalise_in_float
from mmairl.sharding.optim import ZeroOptimWrapper
from mmairl.sharding.teacher import Masters, average_shards, partition_between_steps
from mmairl.sharding.weights import Weights

with suppress(ImportError):
    import deepspeed

HALF = {'bf16': torch.bfloat16, 'fp16': torch.float16}


@STRATEGIES.register_module()
class ZeroStrategy(DeepSpeedStrategy):
    """Shards the optimizer's state (stage 1), gradients too (2) and weights too (3) over the processes.

    Args:
        zero_optimization: DeepSpeed's section of that name: `stage`, `offload_optimizer`, `offload_param` and the rest.
        bf16, fp16: DeepSpeed's sections: weights and gradients in half the width, float32 masters in shards. The teacher
            has a master as well. For activations in half the width only, set the optim wrapper's dtype, as without ZeRO.
        config: further sections of DeepSpeed's own configuration.

    Example:
        >>> strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=2))
    """

    def __init__(
        self,
        *,
        zero_optimization: dict,
        bf16: dict | None = None,
        fp16: dict | None = None,
        config: dict | None = None,
        **kwargs,
    ) -> None:
        stage = zero_optimization.get('stage')
        if stage not in (1, 2, 3):
            raise UserError(f'strategy.zero_optimization.stage={stage} is not one of ZeRO; set 1, 2 or 3')
        if 'deepspeed' not in globals():
            raise UserError(
                'the strategy ZeroStrategy wants DeepSpeed, which is not installed: '
                "pip install --no-build-isolation 'mmairl[deepspeed]', or make test in a checkout"
            )
        for part in ('offload_optimizer', 'offload_param'):
            if (zero_optimization.get(part) or {}).get('device') == 'nvme':
                raise UserError(f"strategy.zero_optimization.{part}.device='nvme' is not supported; set 'cpu'")
        self.stage = stage
        given = dict(bf16=bf16, fp16=fp16)
        self.half = next((HALF[name] for name, section in given.items() if (section or {}).get('enabled')), None)
        self.config = plain({**(config or {}), **{name: section for name, section in given.items() if section}})
        self.config['zero_optimization'] = plain(zero_optimization)
        # Not DeepSpeedStrategy's own start, which imports what DeepSpeed has removed and fails the second time in a process.
        BaseStrategy.__init__(self, **kwargs)
        logging.getLogger('DeepSpeed').setLevel(logging.ERROR)
        if not torch.cuda.is_available():
            # An exchange through shared memory, compiled at the start, in which a process waits for ever for one that died.
            deepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False

    take = staticmethod(load_checkpoint)  # the runner's own, which has read the file before

    def _setup_env(self, **kwargs) -> None:
        super()._setup_env(**kwargs)
        if not dist.is_initialized():  # one process is a group, too
            backend = 'nccl' if torch.cuda.is_available() else 'gloo'
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            os.environ.setdefault('LOCAL_RANK', '0')  # which DeepSpeed asks for

    def _setup_distributed(self, launcher: str, backend: str = 'nccl', **kwargs) -> None:
        """As an ordinary run does; on CPUs the processes have met before."""
        init_dist(launcher, backend, **kwargs)

    def prepare(
        self,
        model: nn.Module,
        *,
        optim_wrapper: dict | None = None,
        param_scheduler: dict | list | None = None,
        compile: dict | bool = False,
        dispatch_kwargs: dict | None = None,
    ) -> Any:
        """Build, initialise and wrap, once; in the order of mmengine's runner."""
        if self._prepared:
            return self._prepared_components()
        self.dispatch_kwargs.update(dispatch_kwargs)
        built = self.build_optim_wrapper(optim_wrapper, model)
        if not isinstance(built, AutocastOptimWrapper):
            raise UserError(
                f"ZeRO takes mmairl's optimizer wrappers and not {type(built).__name__}; remove optim_wrapper.type"
            )
        self.optim_wrapper = built
        self._scale_lr()
        # As and where an ordinary run draws them, so that the same seed draws the same; stage 3 may not fit there.
        model.to('cpu' if self.stage == 3 else get_device(), memory_format=torch.contiguous_format)
        model = self._init_model_weights(model)
        self.optim_wrapper = ZeroOptimWrapper(built)
        self.model = self._start_engine(model, built)
        if param_scheduler is not None:
            self.param_schedulers = self.build_param_scheduler(param_scheduler, self.optim_wrapper)
        self._prepared = True
        return self._prepared_components()

    def without_compiling(self, fast: dict | None) -> dict:
        """A run's `fast`, without compilation where modules do other than their code says: weights come, go and are cast."""
        fast = dict(fast or {})
        if fast.get('compile') and (self.stage == 3 or self.half is not None):
            self.logger.info(
                'fast.compile is left out: under ZeRO-3 or in half precision, weights change their form in a step'
            )
            fast['compile'] = False
        return fast

    def _start_engine(self, model: nn.Module, built: AutocastOptimWrapper) -> ZeroModel:
        teacher = getattr(model, 'teacher', None)
        teacher = teacher if isinstance(teacher, Teacher) else None
        if hasattr(model, 'backbone'):
            PlainCopy(model.backbone, lambda part: self.weights.of_part(part))
        averaged = teacher.parameters() if teacher is not None and self.half is not None else []
        start = {id(parameter): parameter.detach().clone() for parameter in averaged}  # before DeepSpeed rounds them
        with self._explained():
            engine, *_ = deepspeed.initialize(model=model, optimizer=built.optimizer, config=self._settings(built))
        layout = self.optim_wrapper.layout = Layout(engine.optimizer)
        self.optim_wrapper.engine = engine
        if isinstance(built.optimizer, LARS):
            built.optimizer.update = ShardedUpdate(layout)
        masters = None
        if teacher is not None and self.stage == 3:
            partition_between_steps(teacher, engine.optimizer)
            teacher.average = average_shards
        if start:
            masters = Masters(teacher, model, layout, start)
            teacher.average = masters.average
        if self.half is not None:
            normalise_in_float(model)
        self.optim_wrapper.watch = ShardWatch(built.optimizer, layout, masters)
        self.weights = Weights(model, layout, masters)
        return ZeroModel(model=engine, half=self.half)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What DeepSpeed says about its configuration and about the device, as one sentence."""
        try:
            yield
        except ValueError as error:  # pydantic's of a wrong key is one, too
            said = ' '.join(str(error).split())
            raise UserError(f'DeepSpeed refuses the strategy of the config: {said}') from error

    def _settings(self, built: AutocastOptimWrapper) -> dict:
        """DeepSpeed's configuration, of the run's."""
        zero = self.config['zero_optimization']
        zero.setdefault('reduce_bucket_size', BUCKET)
        zero.setdefault('allgather_bucket_size', BUCKET)
        settings = dict(
            train_micro_batch_size_per_gpu=self.dispatch_kwargs['train_micro_batch_size_per_gpu'],
            gradient_accumulation_steps=built._accumulative_counts,
            gradient_clipping=max_norm(built.clip_grad_kwargs),
            zero_allow_untested_optimizer=True,  # SGD and LARS are tested: tests/sharding/test_zero.py
            zero_force_ds_cpu_optimizer=False,
            steps_per_print=10**12,
            **self.config,
        )
        if self.half is torch.bfloat16:
            settings['bf16'].setdefault('check_grad_overflow', True)  # so that a step with NaNs is not taken
        if self.half is not None and self.stage > 1:
            settings.setdefault('data_types', dict(grad_accum_dtype='fp32'))
        if built.cast_dtype is torch.float16:
            raise UserError(
                "ZeRO runs mixed precision in bfloat16: set optim_wrapper.dtype='bfloat16', or strategy.fp16"
            )
        if built.cast_dtype is not None:
            # No module counts as safe to exchange in half the width: weights and gradients stay in float32.
            settings['torch_autocast'] = dict(enabled=True, dtype='bfloat16', lower_precision_safe_modules=[])
        return settings

    def load_checkpoint(self, filename: str, *, callback: Callable | None = None, **_: Any) -> dict[str, Any]:
        checkpoint = self.take(filename)
        if callback is not None:
            callback(checkpoint)
        self.weights.load(checkpoint.get('state_dict', checkpoint))
        self.logger.info(f'loaded {filename}')
        return checkpoint

    def resume(
        self,
        filename: str,
        *,
        resume_optimizer: bool = True,
        resume_param_scheduler: bool = True,
        callback: Callable | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Go on from a checkpoint of this engine or of an ordinary run, made by any number of processes."""
        checkpoint = self.load_checkpoint(filename, callback=callback)
        if resume_optimizer:
            self.load_optim_state_dict(checkpoint['optimizer'])
        if resume_param_scheduler and hasattr(self, 'param_schedulers'):
            self.load_scheduler_state_dict(checkpoint['param_schedulers'])
        seed = checkpoint['meta'].get('seed')
        if seed is not None and seed != self._randomness.get('seed'):
            self._randomness.update(seed=seed)
            self._set_randomness(**self._randomness)
        return checkpoint


def max_norm(clip_grad: dict | None) -> float:
    """The norm that gradients are cut to; 0 is none."""
    if clip_grad is None:
        return 0.0
    if 'max_norm' not in clip_grad or clip_grad.get('norm_type', 2) != 2:
        raise UserError(
            f'ZeRO cuts gradients by their 2-norm and not by clip_grad={dict(clip_grad)}; set max_norm alone'
        )
    return float(clip_grad['max_norm'])


def plain(settings: dict) -> dict:
    """A config's dictionary as DeepSpeed wants it."""
    return ConfigDict(settings).to_dict()

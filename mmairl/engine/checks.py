"""Checks before training: of the config, before anything is built from it, and of the run, before its first step."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.runner import Runner, set_random_seed
from torch.utils.data import DataLoader

from mmairl.config import by_key, refuse_secrets, walk
from mmairl.errors import UserError, closest
from mmairl.models.queue import KeyQueue
from mmairl.models.siamese import Teacher
from mmairl.registry import (
    BOXES,
    DATA_SAMPLERS,
    DATASETS,
    HOOKS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    PROTOCOLS,
    STRATEGIES,
    Registry,
)

REQUIRED = ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
# The least value of each key that counts something.
COUNTS = {
    'total_batch_size': 1,
    'train_cfg.max_epochs': 1,
    'train_cfg.max_iters': 1,
    'train_dataloader.batch_size': 1,
    'train_dataloader.num_workers': 0,
    'optim_wrapper.accumulative_counts': 1,
    'randomness.seed': 0,
    'evaluation.batch_size': 1,
}
# The least and the largest number of each key.
RANGES = {
    'optim_wrapper.optimizer.lr': (0, math.inf),
    'optim_wrapper.optimizer.momentum': (0, 1),
    'optim_wrapper.optimizer.weight_decay': (0, math.inf),
    'optim_wrapper.clip_grad.max_norm': (0, math.inf),
}
# The keys of sections that have no class, as mmengine's runner reads them.
SECTIONS = {
    'train_cfg': (
        'type',
        'by_epoch',
        'max_epochs',
        'max_iters',
        'val_begin',
        'val_interval',
        'dynamic_intervals',
    ),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'env_cfg.dist_cfg': ('backend', 'init_backend', 'timeout'),
    'env_cfg.mp_cfg': ('mp_start_method', 'opencv_num_threads'),
    'auto_scale_lr': ('base_batch_size', 'enable'),
    'randomness': tuple(inspect.signature(set_random_seed).parameters),
    'evaluation': (
        'train',
        'val',
        'test',
        'batch_size',
        'held_out',
        'views',
        'sweep',
        'ks',
        'precision',
        'groups',
    ),
    'recipes': tuple(PROTOCOLS.names()),
    'fast': ('precision', 'channels_last', 'checkpointing', 'compile', 'fused'),
    'train_dataloader': (*inspect.signature(DataLoader).parameters, 'num_batch_per_epoch'),
}
# The registry of the parts at these keys. Parts at deeper keys may come from any registry, or from none.
PLACES = {
    'model': MODELS,
    'model.backbone': MODELS,
    'model.projector': MODELS,
    'model.head': MODELS,
    'train_dataloader.dataset': DATASETS,
    'train_dataloader.sampler': DATA_SAMPLERS,
    'optim_wrapper': OPTIM_WRAPPERS,
    'optim_wrapper.optimizer': OPTIMIZERS,
    'strategy': STRATEGIES,
    'param_scheduler.*': PARAM_SCHEDULERS,
    'default_hooks.*': HOOKS,
    'custom_hooks.*': HOOKS,
}
BUILT = (
    'model',
    'data_preprocessor',
    'train_dataloader',
    'strategy',
    'optim_wrapper',
    'param_scheduler',
    'default_hooks',
    'custom_hooks',
    'visualizer',
)
OTHERS = '**'  # in place of a parameter's name: the class passes any keyword on
# Keys that are removed before a class is called.
REMOVED = (
    'type',
    '_scope_',
    'priority',
    'constructor',
    'paramwise_cfg',
    'convert_to_iter_based',
    'optimizer',
    'init_cfg',
    'requires_grad',
)


def check_config(cfg: Config) -> None:
    """Raise for misspelled keys, unknown types, impossible numbers and secrets in a training config."""
    refuse_secrets(cfg)
    for name in REQUIRED:
        if not isinstance(cfg.get(name), dict):
            raise UserError(
                f'the config sets {name}={cfg.get(name)}, so there is nothing to train; give a training config',
                code='not-a-training-config',
            )
    check_parts(cfg, BUILT)


def check_parts(cfg: Config, sections: tuple[str, ...]) -> None:
    """Raise for a key, at any depth, that the class of its part does not take, and for an unknown class."""
    values = by_key(cfg)
    _check_numbers(values)
    _check_section_keys(values)
    for section in sections if cfg.get('default_scope') == 'mmairl' else ():
        for keys, entry in walk(cfg.get(section), (section,)):
            path = '.'.join(map(str, keys))
            place = path if len(keys) != 2 or path in PLACES else f'{section}.*'
            if isinstance(entry, dict) and (place in PLACES or isinstance(entry.get('type'), str)):
                default = {'type': 'AutocastOptimWrapper'} if path == 'optim_wrapper' else {}
                _check_part(path, {**default, **entry}, PLACES.get(place))


def _check_numbers(values: dict[str, Any]) -> None:
    for path, least in COUNTS.items():
        value = values.get(path)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < least
        ):
            raise UserError(
                f'{path}={value!r} is not a whole number of {least} or more; set one',
                code='bad-count',
            )
    for path, (least, most) in RANGES.items():
        value = values.get(path)
        if isinstance(value, (int, float)) and not (least <= value <= most and value < math.inf):
            raise UserError(
                f'{path}={value} is not a number from {least} to {most}; set one', code='bad-number'
            )


def _check_section_keys(values: dict[str, Any]) -> None:
    for path, known in SECTIONS.items():
        section = values.get(path)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise UserError(
                f'{path}={section!r} is not a section with keys; set {path}=dict({known[0]}=...)',
                code='not-a-section',
            )
        for key in section:
            if key not in (*known, '_scope_'):
                raise UserError(
                    f"{path} has no key '{key}'{closest(key, known)}", code='unknown-key'
                )


def _check_part(path: str, entry: dict, box: Registry | None) -> None:
    if 'type' not in entry:
        raise UserError(
            f'{path} has no type; set {path}.type to a registered {box.name}, or {path}=None to leave it out',
            code='no-type',
        )
    kinds = _classes(path, entry['type'], box)
    if not kinds:
        return
    known: dict[str, inspect.Parameter] = {}
    for kind in kinds:
        known |= _parameters(kind)
    strict = (box is not None or kinds[0].__module__.startswith('mmairl.')) and OTHERS not in known
    for key, value in entry.items():
        if key not in known and key not in REMOVED and (strict or closest(key, known)):
            raise UserError(
                f"{path} has no key '{key}'{closest(key, (*known, *REMOVED), 0.6)}",
                code='unknown-key',
            )
        if key.endswith('channels') and isinstance(value, int) and value < 1:
            raise UserError(
                f'{path}.{key}={value} is not a whole number of 1 or more; set one',
                code='bad-count',
            )
        expected = known[key].annotation if key in known else None
        if isinstance(value, str) and expected in (int, float, bool):
            advice = 'True or False' if expected is bool else 'a number'
            raise UserError(f'{path}.{key}={value!r} is text; set {advice}', code='wrong-type')


def _classes(path: str, name: Any, box: Registry | None) -> list[Callable]:
    """Return the classes that a type may mean; none if the platform chooses it or builds it later."""
    if not isinstance(name, str):
        return [name]
    boxes = BOXES if box is None else [box]
    matches = [place.peek(name) for place in boxes]
    if box is not None and not matches[0]:
        matches = [box.get(name)]  # imports the package of the class
    kinds = [kind for kind in matches if kind]
    if kinds:
        return kinds
    known = [known for place in boxes for known in place.names()]
    near = closest(name, known, 0.8 if box is None else 0.6)
    if box is None and not near:
        return []
    raise UserError(
        f"the config names '{name}', which is not a registered {'part' if box is None else box.name}; "
        f'check {path}.type{near}',
        code='unknown-type',
    )


def _parameters(kind: Callable) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class; OTHERS is among them if it passes keywords to code other than its bases."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        method = vars(base).get('__init__') if inspect.isclass(base) else base
        if method is None or base is object:
            continue
        parameters = inspect.signature(method).parameters
        arguments = {**parameters, **arguments}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return arguments
    return {**arguments, OTHERS: None}


def check_run(runner: Runner) -> None:
    """Raise if a run could only fail later, or would silently train something else."""
    # Imported here, because commands that only check a config need none of these modules.
    from mmairl.data.datasets import innermost_dataset
    from mmairl.data.preprocess import require_channels
    from mmairl.data.training_images import require_a_batch
    from mmairl.models.processes import network_of

    _check_platform_parts(runner)
    loader = runner.train_dataloader
    require_a_batch(loader)
    model = network_of(runner)
    preprocessor = model.data_preprocessor
    views = [
        *getattr(innermost_dataset(loader.dataset), 'views', ()),
        *(getattr(preprocessor, 'views', None) or ()),
    ]
    require_channels(loader.dataset, getattr(preprocessor, 'mean', None), model.backbone, views)
    batch = loader.batch_size or loader.batch_sampler.batch_size
    _check_batch_norm(model, batch)
    _check_teacher_and_queue(runner, model, batch)


def _check_platform_parts(runner: Runner) -> None:
    """Check parts of mmengine that lack features of ours."""
    if not runner.cfg.train_dataloader.keys() & {'batch_size', 'batch_sampler'}:
        raise UserError(
            "mmengine's own runner takes one image a step if train_dataloader.batch_size is not set; set it, or start with "
            "runner_type='mmairl.PreparedRunner', which shares total_batch_size among the processes",
            code='no-batch-size',
        )
    if not hasattr(runner.optim_wrapper, 'finite'):
        raise UserError(
            f"optim_wrapper.type: '{type(runner.optim_wrapper).__name__}' is mmengine's and steps even if a loss is not "
            "finite; set 'AutocastOptimWrapper' (with dtype='bfloat16' for mixed precision)",
            code='wrong-optim-wrapper',
        )
    exact = hasattr(runner, 'snapshot') and _has_hook(runner, 'ExactCheckpointHook')
    if not exact:
        runner.logger.warning(
            'a resumed run will draw other random numbers and may see images of its epoch again; to resume exactly, set '
            "runner_type='mmairl.PreparedRunner' and default_hooks.checkpoint.type='ExactCheckpointHook'"
        )


def _check_batch_norm(model: Any, batch: int) -> None:
    from mmairl.models.norm import SyncBN, norms_of

    norms = norms_of(model)
    joined = all(isinstance(layer, SyncBN) for layer in norms)
    rows = batch * get_world_size() if joined else batch
    if norms and rows == 1:
        raise UserError(
            'a batch of one has no batch statistics, and the network has batch norm; raise total_batch_size',
            code='batch-of-one',
        )


def _check_teacher_and_queue(runner: Runner, model: Any, batch: int) -> None:
    moves = _has_hook(runner, 'MomentumHook')
    if isinstance(getattr(model, 'teacher', None), Teacher) and not moves:
        raise UserError(
            "the teacher never moves; set default_hooks.momentum=dict(type='MomentumHook')",
            code='no-momentum-hook',
        )
    queue = getattr(model, 'queue', None)
    if not isinstance(queue, KeyQueue):
        return
    total = batch * get_world_size() * runner.optim_wrapper.accumulated
    if queue.length < total:
        raise UserError(
            f'the queue holds {queue.length} keys and one step adds {total}; '
            'raise model.queue.length or lower total_batch_size',
            code='queue-too-short',
        )
    images = len(runner.train_dataloader.dataset)
    negatives = getattr(model.head, 'queue_role', 'negatives') == 'negatives'
    if negatives and queue.length > images:
        runner.logger.warning(
            f'the queue holds {queue.length} keys and the training set {images} images, so images meet their own old keys as '
            f'negatives; set model.queue.length to {max(total, images // 10)} or less (tools/train.py --suggest)'
        )
    if not moves:
        raise UserError(
            "nothing fills the network's queue; set default_hooks.momentum=dict(type='MomentumHook')",
            code='no-queue-hook',
        )


def _has_hook(runner: Runner, name: str) -> bool:
    return any(isinstance(hook, HOOKS.get(name)) for hook in runner.hooks)

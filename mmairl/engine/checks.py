"""Check a run before training: `check_config` checks the config, and `check_built_run` checks what was built from it."""

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.runner import Runner, set_random_seed
from torch import Tensor
from torch.utils.data import DataLoader

from mmairl import registry
from mmairl.config import by_key, walk
from mmairl.errors import UserError, closest
from mmairl.io import read_yaml
from mmairl.models.queue import KeyQueue
from mmairl.models.siamese import Teacher
from mmairl.registry import OWN_CLASS

REQUIRED = ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper')


class Rules(msgspec.Struct):
    """The content of checks.yaml, where a comment explains each field."""

    counts: dict[str, int]
    numbers: dict[str, tuple[float, float]]
    sections: dict[str, tuple[str, ...]]
    removed: tuple[str, ...]
    places: dict[str, str]
    built: tuple[str, ...]


RULES = read_yaml(Path(__file__).with_suffix('.yaml'), Rules)
SECTIONS = {
    **RULES.sections,
    'randomness': tuple(inspect.signature(set_random_seed).parameters),
    'train_dataloader': (*inspect.signature(DataLoader).parameters, 'num_batch_per_epoch'),
}
PLACES = {path: getattr(registry, name) for path, name in RULES.places.items()}
BUILT = RULES.built
# `_parameters` adds this name to the parameters of a class that accepts any keyword.
OTHERS = '**'


def check_config(cfg: Config) -> None:
    """Raise for a misspelled key, an unknown type, an invalid number or a secret in a training config."""
    for name in REQUIRED:
        if not isinstance(cfg.get(name), dict):
            raise UserError(
                f"{name}: a training config requires this section ('{cfg.get(name)}'); add it, or give a training config",
                code='not-a-training-config',
            )
    check_parts(cfg, BUILT)


def check_parts(cfg: Config, sections: tuple[str, ...]) -> None:
    """Raise if these sections name an unknown class, or if they set a key that a class does not accept.

    Also raise for numbers out of range, and for unknown keys in sections that do not name a class. Classes and their keys are
    checked only if the `default_scope` of the config is 'mmairl'.
    """
    values = by_key(cfg)
    _check_numbers(values)
    for path, known in SECTIONS.items():
        _check_section(path, values.get(path), known)
    _check_section('recipes', values.get('recipes'), tuple(registry.PROTOCOLS.names()))
    for section in sections if cfg.get('default_scope') == 'mmairl' else ():
        for keys, entry in walk(cfg.get(section), (section,)):
            path = '.'.join(map(str, keys))
            place = path if len(keys) != 2 or path in PLACES else f'{section}.*'
            if isinstance(entry, dict) and (place in PLACES or isinstance(entry.get('type'), str)):
                default = {'type': 'AutocastOptimWrapper'} if path == 'optim_wrapper' else {}
                _check_part(path, {**default, **entry}, PLACES.get(place))


def _check_numbers(values: dict[str, Any]) -> None:
    for path, least in RULES.counts.items():
        value = values.get(path)
        if value is not None:
            _require_count(path, value, least)
    for path, (least, most) in RULES.numbers.items():
        value = values.get(path)
        if isinstance(value, (int, float)) and not (least <= value <= most and value < math.inf):
            raise UserError(
                f"{path}: expected a number from {least} to {most} ('{value}'); correct the number",
                code='bad-number',
            )


def _require_count(path: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise UserError(
            f"{path}: expected a whole number of at least {least} ('{value}'); correct the number",
            code='bad-count',
        )


def _check_section(path: str, section: Any, known: Sequence[str]) -> None:
    if section is None:
        return
    if not isinstance(section, dict):
        raise UserError(
            f"{path}: expected a section with keys ('{section}'); set {path}=dict({known[0]}=...)",
            code='not-a-section',
        )
    for key in section:
        if key not in (*known, '_scope_'):
            advice = closest(key, known) or f'; use one of {", ".join(known)}'
            raise UserError(f"{path} has no key '{key}'{advice}", code='unknown-key')


def _check_part(path: str, entry: dict, box: registry.Registry | None) -> None:
    if 'type' not in entry:
        raise UserError(
            f'{path}: the type is missing; set {path}.type to a registered {box.name}, or set {path}=None',
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
        if key not in known and key not in RULES.removed and (strict or closest(key, known)):
            advice = closest(key, (*known, *RULES.removed), 0.6) or '; correct or remove the key'
            raise UserError(f"{path} has no key '{key}'{advice}", code='unknown-key')
        if key.endswith('channels') and isinstance(value, int):
            _require_count(f'{path}.{key}', value, 1)
        expected = known[key].annotation if key in known else None
        if isinstance(value, str) and expected in (int, float, bool):
            advice = 'True or False' if expected is bool else 'a number'
            raise UserError(
                f"{path}.{key}: expected {advice}, got the text '{value}'; correct the value",
                code='wrong-type',
            )


def _classes(path: str, name: Any, box: registry.Registry | None) -> list[Callable]:
    """Return the classes that a type may refer to.

    If a registry `box` is given, raise unless it has a class of this name. If `box` is None, search all registries of mmairl.
    If no registry has the class, raise if its name resembles a registered name. Otherwise, return an empty list, because
    mmengine may still find the class when it builds the object.
    """
    if not isinstance(name, str):
        return [name]
    boxes = [box]
    if box is None:
        boxes = [place for place in vars(registry).values() if isinstance(place, registry.Registry)]
    kinds = []
    for place in boxes:
        with suppress(RuntimeError):  # mmengine raises it for a module that cannot be imported
            kinds.append(place.get(name))
    kinds = [kind for kind in kinds if kind]
    if kinds:
        return kinds
    known = [known for place in boxes for known in place.names()]
    near = closest(name, known, 0.8 if box is None else 0.6)
    if box is None and not near:
        return []
    raise UserError(
        f"{path}.type: no {'part' if box is None else box.name} of this name is registered ('{name}'){near}; {OWN_CLASS}",
        code='unknown-type',
    )


def _parameters(kind: Callable) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class, including those of its bases if it forwards keywords to them.

    OTHERS is added if the class forwards keywords to any other code, because any keyword may then be valid.
    """
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


def check_built_run(runner: Runner) -> None:
    """Raise if the run would fail later, or would silently train something other than intended."""
    # These modules are imported here, because commands that only check a config do not need them.
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
    _check_takes_views(model, views)
    batch = loader.batch_size or loader.batch_sampler.batch_size
    _check_batch_norm(model, batch)
    _check_teacher_and_queue(runner, model, batch)


def _check_platform_parts(runner: Runner) -> None:
    if not runner.cfg.train_dataloader.keys() & {'batch_size', 'batch_sampler'}:
        raise UserError(
            "train_dataloader.batch_size: not set, and mmengine's runner defaults to 1; set it, or set "
            "runner_type='mmairl.PreparedRunner', which divides total_batch_size among the processes",
            code='no-batch-size',
        )
    if not hasattr(runner.optim_wrapper, 'finite'):
        raise UserError(
            'optim_wrapper.type: this wrapper does not skip steps with a non-finite loss '
            f"('{type(runner.optim_wrapper).__name__}'); set 'AutocastOptimWrapper', with dtype='bfloat16' for mixed precision",
            code='wrong-optim-wrapper',
        )
    exact = hasattr(runner, 'snapshot') and _has_hook(runner, 'ExactCheckpointHook')
    if not exact:
        runner.logger.warning(
            'a resume of this run will not be exact: random numbers will differ, and images of the epoch may repeat; set '
            "runner_type='mmairl.PreparedRunner' and default_hooks.checkpoint.type='ExactCheckpointHook'"
        )


def _check_takes_views(model: Any, views: list) -> None:
    """Raise if the data set returns a list of views, but the model takes a single tensor, as mmpretrain's MAE does."""
    inputs = inspect.signature(getattr(model, 'loss', print)).parameters.get('inputs')
    if views and inputs is not None and inputs.annotation is Tensor:
        raise UserError(
            f"model.type: the model takes one tensor, but the data set returns a list of views ('{type(model).__name__}'); "
            "use mmpretrain's data set, pipeline and data_preprocessor (its configs/_base_/datasets)",
            code='takes-one-tensor',
        )


def _check_batch_norm(model: Any, batch: int) -> None:
    from mmairl.models.norm import SyncBN, norms_of

    norms = norms_of(model)
    joined = all(isinstance(layer, SyncBN) for layer in norms)
    rows = batch * get_world_size() if joined else batch
    if norms and rows == 1:
        raise UserError(
            "total_batch_size: batch norm requires at least two images per process ('1'); raise total_batch_size",
            code='batch-of-one',
        )


def _check_teacher_and_queue(runner: Runner, model: Any, batch: int) -> None:
    moves = _has_hook(runner, 'MomentumHook')
    if isinstance(getattr(model, 'teacher', None), Teacher) and not moves:
        raise UserError(
            "model.teacher: no hook updates the teacher; set default_hooks.momentum=dict(type='MomentumHook')",
            code='no-momentum-hook',
        )
    queue = getattr(model, 'queue', None)
    if not isinstance(queue, KeyQueue):
        return
    total = batch * get_world_size() * runner.optim_wrapper.accumulated
    if queue.length < total:
        raise UserError(
            f"model.queue.length: the queue must hold all keys of an optimizer step ('{queue.length}'); set a length of at "
            f'least {total}, or lower total_batch_size',
            code='queue-too-short',
        )
    images = len(runner.train_dataloader.dataset)
    negatives = getattr(model.head, 'queue_role', 'negatives') == 'negatives'
    if negatives and queue.length > images:
        runner.logger.warning(
            f'model.queue.length: the queue of {queue.length} keys is longer than an epoch of {images} images, so the '
            f'negatives of an image include its own old keys; set at most {max(total, images // 10)}'
        )
    if not moves:
        raise UserError(
            "model.queue: no hook fills the queue; set default_hooks.momentum=dict(type='MomentumHook')",
            code='no-queue-hook',
        )


def _has_hook(runner: Runner, name: str) -> bool:
    return any(isinstance(hook, registry.HOOKS.get(name)) for hook in runner.hooks)

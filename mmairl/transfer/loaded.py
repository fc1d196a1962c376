"""What a transfer run starts from: named before it starts, and proven to be in the network."""

from collections.abc import Iterator

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.engine.checkpoint import load_checkpoint, trust_mmengine_checkpoints
from mmairl.errors import UserError
from mmairl.network import network_of
from mmairl.registry import HOOKS
from mmairl.weights.norms import warning_before_fine_tuning

PREFIX = {'student': '', 'teacher': 'teacher.'}
SELF_CHECKING = ('PretrainedBackbone', 'NormRescaled')
UNUSED = 'num_batches_tracked'  # old checkpoints lack it, and no norm with a momentum reads it


def start_from(cfg: Config, checkpoint: str, part: str = 'student') -> Config:
    """Every pre-trained part of the config's model, taken from one checkpoint's student or teacher.

    >>> cfg = start_from(load_config('configs/transfer/voc07_c4_r50_9k.py'), CKPT, 'teacher')  # doctest: +SKIP
    """
    if part not in PREFIX:
        raise UserError(f"part '{part}' is not in a checkpoint; say student or teacher")
    for init in _pretrained_dicts(cfg.model):
        init.update(checkpoint=str(checkpoint), prefix=PREFIX[part] + init.prefix.removeprefix(PREFIX['teacher']))
    return cfg


def _pretrained_dicts(node: object) -> Iterator[dict]:
    if isinstance(node, dict):
        if node.get('type') == 'Pretrained':
            yield node
        for value in node.values():
            yield from _pretrained_dicts(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _pretrained_dicts(value)


@HOOKS.register_module()
class CheckPretrainedHook(Hook):
    """Refuses to start unless every weight of every pre-trained part came from the checkpoint.

    mmengine loads what happens to fit and warns about the rest, so that a wrong prefix or stem trains from noise.
    """

    priority = 'HIGHEST'

    def before_run(self, runner: Runner) -> None:
        """Before mmengine reads the files: do they hold each weight, in its shape?"""
        trust_mmengine_checkpoints()
        model = _unwrapped(runner)
        if not any(name.split('.')[0] == 'backbone' for name in filled_parts(model)):
            raise UserError(
                "the backbone has no pre-trained weights: set model.backbone.init_cfg=dict(type='Pretrained', "
                "checkpoint=..., prefix='backbone.'), or take CheckPretrainedHook out to train from random ones"
            )
        for name, init in pretrained_parts(model):
            _check_fit(name, model.get_submodule(name).state_dict(), expected(name, init), init)

    def before_train(self, runner: Runner) -> None:
        """After mmengine has read them: is each weight in the network?"""
        if runner.iter > 0 or runner._resume or runner._load_from:
            runner.logger.info('the weights are those of the run that goes on, not of the pre-training')
            return
        model, matched = _unwrapped(runner), []
        for name, init in pretrained_parts(model):
            weights = expected(name, init)
            _check_values(name, model.get_submodule(name).state_dict(), weights, init)
            matched.append(f'{name}: all {_count(model.get_submodule(name))} keys from {_origin(init)}')
            if warning := warning_before_fine_tuning(weights, f'{name} ({_origin(init)})'):
                runner.logger.warning(warning)
        runner.logger.info('; '.join([*matched, f'new: {", ".join(new_parts(model)) or "nothing"}']))


def pretrained_parts(model: nn.Module) -> list[tuple[str, dict]]:
    """The modules whose `init_cfg` is a checkpoint, by name."""
    return [(name, init) for name, module in model.named_modules() for init in _inits(module) if _is_pretrained(init)]


def filled_parts(model: nn.Module) -> list[str]:
    """The modules that start from a checkpoint, those too whose initializer of ours refuses by itself what does not fit."""
    own = [
        name
        for name, module in model.named_modules()
        for init in _inits(module)
        if str(init.get('type')).removeprefix('mmairl.') in SELF_CHECKING
    ]
    return [name for name, _ in pretrained_parts(model)] + own


def _inits(module: nn.Module) -> list[dict]:
    inits = getattr(module, 'init_cfg', None) or []
    return [inits] if isinstance(inits, dict) else list(inits)


def new_parts(model: nn.Module) -> list[str]:
    """The outermost modules with weights that no checkpoint fills."""
    filled = filled_parts(model)

    def walk(module: nn.Module, path: str) -> Iterator[str]:
        for name, child in module.named_children():
            at = f'{path}.{name}'.lstrip('.')
            if at in filled or not list(child.parameters()):
                continue
            if any(part.startswith(f'{at}.') for part in filled):
                yield from walk(child, at)
            else:
                yield at

    return list(walk(model, ''))


def expected(name: str, init: dict) -> dict[str, Tensor]:
    """What the checkpoint holds for one part, without the prefix."""
    if not init.get('checkpoint'):
        raise UserError(
            f'no checkpoint is given for {name}: set model.{name.removesuffix(".layer4")}.init_cfg.checkpoint'
        )
    prefix = (init.get('prefix') or '').rstrip('.')
    prefix = f'{prefix}.' if prefix else ''
    checkpoint = load_checkpoint(init['checkpoint'])
    weights = checkpoint.get('state_dict', checkpoint)
    found = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    if not found:
        raise UserError(
            f"{init['checkpoint']} holds nothing for {name}: no key starts with '{prefix}'; its keys look like "
            f'{list(weights)[:3]}'
        )
    return found


def _check_fit(name: str, ours: dict[str, Tensor], theirs: dict[str, Tensor], init: dict) -> None:
    needed = [key for key in ours if not key.endswith(UNUSED)]
    missing = [key for key in needed if key not in theirs]
    if missing:
        raise UserError(
            f'{init["checkpoint"]} lacks {len(missing)} of the {len(needed)} weights of {name} (first: {missing[0]}); '
            'use the config of the architecture that was pre-trained'
        )
    differing = [key for key in needed if theirs[key].shape != ours[key].shape]
    if differing:
        key = differing[0]
        raise UserError(
            f'{key} of {name} is {tuple(theirs[key].shape)} in {init["checkpoint"]} and {tuple(ours[key].shape)} in the '
            f'config ({len(differing)} such weights); use the config of the architecture that was pre-trained'
        )


def _check_values(name: str, ours: dict[str, Tensor], theirs: dict[str, Tensor], init: dict) -> None:
    needed = [key for key in ours if not key.endswith(UNUSED)]
    unlike = [key for key in needed if not torch.equal(ours[key].cpu(), theirs[key].to(ours[key].dtype))]
    if unlike:
        raise UserError(
            f'{len(unlike)} weights of {name} are not those of {init["checkpoint"]} (first: {unlike[0]}), though they are '
            'in it; something initialises them after they are loaded'
        )


def _is_pretrained(init: dict) -> bool:
    return init.get('type') == 'Pretrained'


def _count(module: nn.Module) -> int:
    return sum(not key.endswith(UNUSED) for key in module.state_dict())


def _origin(init: dict) -> str:
    prefix = init.get('prefix') or ''
    whose = {'backbone': 'the student of ', 'teacher': 'the teacher of '}.get(prefix.split('.')[0], '')
    return f'{whose}{init["checkpoint"]}'


def _unwrapped(runner: Runner) -> nn.Module:
    return network_of(runner)

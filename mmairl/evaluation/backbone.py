"""The backbone under test, loaded whole or not at all.

Evaluating the wrong network in silence is the field's classic error.
"""

import logging
from pathlib import Path

import torch
from mmengine import Config
from mmengine.logging import print_log
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.platform import import_mmpretrain
from mmairl.registry import MODELS
from mmairl.weights.read import read_backbone


def load_backbone(cfg: Config, checkpoint: str | Path | None = None, part: str = 'student', seed: int = 0) -> nn.Module:
    """The config's backbone, frozen and in eval mode, with a checkpoint's weights or (None) a seeded random start.

    >>> cfg = Config.fromfile('configs/mocov2plus_r50_200e.py')  # doctest: +SKIP
    >>> backbone = load_backbone(cfg, 'epoch_200.pth', part='teacher')  # doctest: +SKIP
    """
    if checkpoint is None:
        backbone = _random_backbone(cfg, seed)
        origin = f'random initialisation, seed {seed}'
    else:
        found = read_backbone(checkpoint, part)
        backbone = _build(cfg)
        require_same_keys(found.weights, backbone.state_dict(), checkpoint)
        backbone.load_state_dict(found.weights)
        origin = f'{found}, all {len(found.weights)} keys matched'
    print_log(f'backbone under test: {origin}', logger='current')
    backbone.requires_grad_(False)
    backbone.eval()
    return backbone


def _build(cfg: Config) -> nn.Module:
    import_mmpretrain()
    description = cfg.model.backbone.copy()
    # A pre-trained start in the config belongs to training; here it would hide what the checkpoint lacks.
    description.pop('init_cfg', None)
    return MODELS.build(description)


def _random_backbone(cfg: Config, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = _build(cfg)
        if hasattr(backbone, 'init_weights'):
            logging.disable(logging.INFO)  # mmengine would print how each tensor was started
            try:
                backbone.init_weights()
            finally:
                logging.disable(logging.NOTSET)
    return backbone


def require_same_keys(there: dict[str, Tensor], here: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a checkpoint unless it and the network name the same tensors with the same shapes."""
    shapes = [key for key in here if key in there and here[key].shape != there[key].shape]
    missing = [key for key in here if key not in there]
    unexpected = [key for key in there if key not in here]
    faults = []
    if shapes:
        key = shapes[0]
        faults.append(
            f'{key} is {tuple(there[key].shape)} there and {tuple(here[key].shape)} in the config{_more(shapes[1:])}'
        )
    if missing:
        faults.append(f'it lacks {_few(missing)}')
    if unexpected:
        faults.append(f'it has {_few(unexpected)} beyond the config')
    if faults:
        raise UserError(
            f'checkpoint {path} holds another architecture: {"; ".join(faults)}; give the config it was trained with'
        )


def _few(keys: list[str], shown: int = 2) -> str:
    return ', '.join(keys[:shown]) + _more(keys[shown:])


def _more(rest: list[str]) -> str:
    return f' (and {len(rest)} more)' if rest else ''

"""A transfer run starts from every weight that was pre-trained, or does not start."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.transfer.pretrained import CheckPretrainedHook


class Part(BaseModule):
    """Like a C4 detector's backbone, which ends before the last stage, or like its last stage."""

    def __init__(self, init_cfg: dict | None = None, stem: bool = True) -> None:
        super().__init__(init_cfg)
        self.conv1 = nn.Conv2d(3 if stem else 4, 4, 3)
        if stem:
            self.bn1 = nn.BatchNorm2d(4)


class Detector(BaseModule):
    def __init__(self, checkpoint: str | None, prefix: str = 'backbone.') -> None:
        super().__init__()
        init = dict(type='Pretrained', checkpoint=checkpoint)
        self.backbone, self.head = Part(dict(init, prefix=prefix)), BaseModule()
        self.head.layer4, self.head.box = Part(dict(init, prefix=f'{prefix}layer4.'), stem=False), nn.Linear(4, 2)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    """The weights of a pre-training checkpoint of ours, student and teacher."""
    backbone = Part()
    backbone.layer4 = Part(stem=False)
    found = {'projector.w': torch.ones(3)}
    for whose in ('backbone.', 'teacher.backbone.'):
        found |= {f'{whose}{k}': 0.1 * torch.randn_like(v.float()) for k, v in backbone.state_dict().items()}
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[dict], str]:
    def save(weights: dict[str, Tensor]) -> str:
        torch.save(dict(meta=dict(epoch=1), state_dict=weights), tmp_path / 'pretrained.pth')
        return str(tmp_path / 'pretrained.pth')

    return save


def begin(model: nn.Module, between: Callable[[CheckPretrainedHook], object] = lambda hook: None) -> None:
    """What mmengine's runner does before the first step."""
    hook, runner = CheckPretrainedHook(), SimpleNamespace(model=model, logger=logging.getLogger('start'))
    hook.before_run(runner)
    model.init_weights()
    between(hook)
    hook.before_train(runner)


@pytest.mark.parametrize('part', ['student', 'teacher'])
def test_one_line_says_what_came_from_where_and_what_is_new(part, weights, saved, caplog, monkeypatch):
    path, reads, load = saved(weights), [], torch.load
    monkeypatch.setattr(torch, 'load', lambda *args, **options: reads.append(args) or load(*args, **options))
    prefix = {'student': 'backbone.', 'teacher': 'teacher.backbone.'}[part]
    model = Detector(path, prefix)
    with caplog.at_level('INFO', 'start'):
        begin(model)
    whose = f'keys from the {part} of {path}'
    expected = f'backbone: all 7 {whose}; head.layer4: all 2 {whose}; new: head.box'
    assert [record.message for record in caplog.records if record.name == 'start'] == [expected]
    assert torch.equal(model.backbone.bn1.running_var, weights[f'{prefix}bn1.running_var'])
    assert torch.equal(model.head.layer4.conv1.weight, weights[f'{prefix}layer4.conv1.weight'])
    assert len(reads) == 1, 'the file is read once for all parts'


def test_what_does_not_fit_is_named(weights, saved):
    for key in ('bn1.running_mean', 'layer4.conv1.weight'):
        short = {name: value for name, value in weights.items() if name != f'backbone.{key}'}
        with pytest.raises(UserError, match=f'another architecture: it lacks {key.removeprefix("layer4.")};'):
            begin(Detector(saved(short)))
    with pytest.raises(UserError, match=r'conv1\.weight is \(4, 3, 5, 5\) there and \(4, 3, 3, 3\) in the config'):
        begin(Detector(saved({**weights, 'backbone.conv1.weight': torch.ones(4, 3, 5, 5)})))
    student = {key: value for key, value in weights.items() if key.startswith('backbone.')}
    with pytest.raises(UserError, match=r"no key of .* starts with 'teacher\.backbone\.'; its keys look like"):
        begin(Detector(saved(student), 'teacher.backbone.'))


def test_a_part_that_something_initialises_later_has_the_checkpoints_weights(weights, saved):
    """Its counters of batches may be missing: torchvision's files have none."""
    model = Detector(saved({key: value for key, value in weights.items() if 'num_batches' not in key}))
    begin(model, lambda hook: nn.init.zeros_(model.backbone.bn1.weight))  # as a zero-initialised residual would
    assert torch.equal(model.backbone.bn1.weight, weights['backbone.bn1.weight'])


def test_a_resumed_run_keeps_its_own_weights(weights, saved, caplog):
    model = Detector(saved(weights))

    def resume(hook: CheckPretrainedHook) -> None:
        nn.init.ones_(model.backbone.conv1.weight)
        hook.after_load_checkpoint(None, {})

    with caplog.at_level('INFO', 'start'):
        begin(model, resume)
    assert (model.backbone.conv1.weight == 1).all() and 'not of the pre-training' in caplog.text


def test_no_checkpoint_and_no_pretraining_are_refused():
    with pytest.raises(UserError, match='is given for backbone: set model.backbone.init_cfg.checkpoint'):
        begin(Detector(None))
    model = Detector(None)
    model.backbone.init_cfg = dict(type='Kaiming', layer='Conv2d')
    with pytest.raises(UserError, match='the backbone has no pre-trained weights'):
        begin(model)


def test_a_lars_trained_checkpoint_is_rescaled_where_a_part_asks_for_it(weights, saved, tmp_path):
    """By init_cfg alone, for a part of the network too, and without a warning."""
    anchor = {key.removeprefix('backbone.'): value for key, value in weights.items() if key.startswith('backbone.')}
    torch.save(anchor, tmp_path / 'anchor.pth')
    lars = saved({f'backbone.{key}': 30 * value for key, value in anchor.items()})
    init = dict(type='mmairl.NormRescaled', checkpoint=lars, anchor=str(tmp_path / 'anchor.pth'))
    model = Detector(lars)
    model.backbone.init_cfg, model.head.layer4.init_cfg = init, dict(init, prefix='layer4.')
    begin(model)
    torch.testing.assert_close(model.backbone.conv1.weight.data, anchor['conv1.weight'])
    torch.testing.assert_close(model.head.layer4.conv1.weight.data, anchor['layer4.conv1.weight'])

"""A transfer run starts from every weight that was pre-trained, or does not start."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import init_default_scope
from torch import Tensor, nn
from torchvision import models
from toy import CONFIGS

from mmairl.configs import load_config
from mmairl.errors import UserError
from mmairl.transfer.loaded import CheckPretrainedHook, start_from

CONFIG = str(CONFIGS / 'transfer' / 'voc07_c4_r18_9k.py')
NEW = 'new: rpn_head, roi_head.shared_head.norm, roi_head.bbox_head'


def resnet(depth: int = 18) -> dict[str, Tensor]:
    weights = getattr(models, f'resnet{depth}')(weights=None).state_dict()
    return {
        key: 0.01 * torch.randn_like(value) if value.is_floating_point() else value
        for key, value in weights.items()
        if not key.startswith('fc.')
    }


@pytest.fixture(scope='module')
def siamese() -> dict[str, Tensor]:
    """The weights of a pre-training checkpoint of ours, student and teacher."""
    student = {f'backbone.{key}': value for key, value in resnet().items()}
    teacher = {f'teacher.backbone.{key}': value for key, value in resnet().items()}
    return {**student, **teacher, 'projector.fc0.weight': torch.ones(3)}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[dict], str]:
    def save(weights: dict[str, Tensor]) -> str:
        torch.save(dict(meta=dict(epoch=1), state_dict=weights), tmp_path / 'pretrained.pth')
        return str(tmp_path / 'pretrained.pth')

    return save


def detector(checkpoint: str | None, part: str = 'student', config: str = CONFIG) -> nn.Module:
    from mmdet.registry import MODELS

    init_default_scope('mmdet')
    cfg = load_config(config)
    if checkpoint:
        start_from(cfg, checkpoint, part)
    return MODELS.build(cfg.model)


def runner_of(model: nn.Module, **state: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{**dict(model=model, iter=0, _resume=False, _load_from=None, logger=logging.getLogger('loaded')), **state}
    )


def begin(model: nn.Module, **state: object) -> None:
    """What mmengine's runner does before the first step."""
    hook, runner = CheckPretrainedHook(), runner_of(model, **state)
    hook.before_run(runner)
    model.init_weights()
    hook.before_train(runner)


@pytest.mark.parametrize('part', ['student', 'teacher'])
def test_one_line_says_what_came_from_where_and_what_is_new(part, siamese, saved, caplog):
    path = saved(siamese)
    model = detector(path, part)
    with caplog.at_level('INFO', 'loaded'):
        begin(model)
    # 3 stages of ResNet-18: 1 + 4 + 5 + 5 convolutions, each with a norm of 4 tensors; the fourth stage: 5 more.
    expected = (
        f'backbone: all 75 keys from the {part} of {path}; roi_head.shared_head.layer4: all 25 keys from the {part} of '
    )
    assert [record.message for record in caplog.records if record.name == 'loaded'] == [f'{expected}{path}; {NEW}']
    prefix = {'student': 'backbone.', 'teacher': 'teacher.backbone.'}[part]
    assert torch.equal(model.backbone.conv1.weight, siamese[f'{prefix}conv1.weight'])
    norm = model.roi_head.shared_head.layer4[1].bn2
    assert torch.equal(norm.running_var, siamese[f'{prefix}layer4.1.bn2.running_var'])


@pytest.mark.parametrize(
    'key, part', [('layer3.0.bn1.running_mean', 'backbone'), ('layer4.1.conv2.weight', 'roi_head.shared_head.layer4')]
)
def test_a_missing_weight_is_named(key, part, siamese, saved):
    path = saved({name: value for name, value in siamese.items() if name != f'backbone.{key}'})
    short = key.removeprefix('layer4.')
    with pytest.raises(UserError, match=rf'lacks 1 of the \d+ weights of {part} \(first: {short}\)'):
        begin(detector(path))


def test_another_shape_is_named(siamese, saved):
    path = saved({**siamese, 'backbone.conv1.weight': torch.ones(64, 3, 3, 3)})
    with pytest.raises(UserError, match=r'conv1\.weight of backbone is \(64, 3, 3, 3\) in .* and \(64, 3, 7, 7\)'):
        begin(detector(path))


def test_another_depth_is_refused(siamese, saved):
    with pytest.raises(UserError, match='lacks .* of the .* weights of backbone .*architecture that was pre-trained'):
        begin(detector(saved(siamese), config=CONFIG.replace('r18', 'r50')))


def test_another_prefix_is_named(siamese, saved):
    student = {key: value for key, value in siamese.items() if key.startswith('backbone.')}
    with pytest.raises(UserError, match=r"holds nothing for backbone: no key starts with 'teacher\.backbone\.'"):
        begin(detector(saved(student), 'teacher'))


def test_a_weight_that_something_initialises_later_is_refused(siamese, saved):
    hook, model = CheckPretrainedHook(), detector(saved(siamese))
    hook.before_run(runner_of(model))
    model.init_weights()
    nn.init.zeros_(model.roi_head.shared_head.layer4[1].bn2.weight)  # as a zero-initialised residual would
    with pytest.raises(
        UserError, match=r'1 weights of roi_head\.shared_head\.layer4 are not those of .*1\.bn2\.weight'
    ):
        hook.before_train(runner_of(model))


def test_no_checkpoint_and_no_pretraining_are_refused():
    with pytest.raises(
        UserError, match=r'no checkpoint is given for backbone: set model\.backbone\.init_cfg\.checkpoint'
    ):
        begin(detector(None))
    model = detector(None)
    model.backbone.init_cfg = dict(type='Kaiming', layer='Conv2d')
    with pytest.raises(UserError, match='the backbone has no pre-trained weights'):
        begin(model)


def test_a_run_that_goes_on_is_not_held_to_its_start(siamese, saved, caplog):
    hook, model = CheckPretrainedHook(), detector(saved(siamese))
    with caplog.at_level('INFO', 'loaded'):
        hook.before_train(runner_of(model, iter=7))
    assert 'run that goes on' in caplog.text


def test_checkpoints_without_batch_counters_are_complete(siamese, saved):
    begin(detector(saved({key: value for key, value in siamese.items() if 'num_batches' not in key})))


def test_a_part_is_student_or_teacher():
    with pytest.raises(UserError, match="part 'online' is not in a checkpoint"):
        start_from(load_config(CONFIG), 'x.pth', 'online')


def test_a_lars_trained_checkpoint_is_rescaled_as_the_detector_is_made(tmp_path):
    """By init_cfg alone, through the stages of the backbone and the head: no extra file, and nobody is warned."""
    source, anchor = ({k: v * scale for k, v in resnet().items()} for scale in (30, 1))
    torch.save(dict(state_dict={f'backbone.{k}': v for k, v in source.items()}), tmp_path / 'lars.pth')
    torch.save(anchor, tmp_path / 'anchor.pth')
    from mmdet.registry import MODELS

    init_default_scope('mmdet')
    cfg = load_config(CONFIG)
    init = dict(
        _delete_=True,
        type='mmairl.NormRescaled',
        checkpoint=str(tmp_path / 'lars.pth'),
        anchor=str(tmp_path / 'anchor.pth'),
    )
    cfg.merge_from_dict({'model.backbone.init_cfg': init})
    cfg.merge_from_dict({'model.roi_head.shared_head.init_cfg': dict(init, prefix='layer4.')})
    model = MODELS.build(cfg.model)
    hook, runner = CheckPretrainedHook(), runner_of(model)
    hook.before_run(runner)
    model.init_weights()
    hook.before_train(runner)
    parts = {'layer3.1.conv2.weight': model.backbone, 'layer4.1.conv2.weight': model.roi_head.shared_head}
    for key, module in parts.items():
        found = module.state_dict()[key]
        assert found.norm().item() == pytest.approx(anchor[key].norm().item(), rel=1e-5)
        assert torch.nn.functional.cosine_similarity(found.flatten(), source[key].flatten(), dim=0) > 1 - 1e-5

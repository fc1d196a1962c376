"""Hidden factors (properties that no config key states): each stated value agrees with the behavior of the component."""

import pytest
import torch
import torch.nn.functional as F

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.evaluation.backbone import load_backbone
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS, OPTIMIZERS
from mmairl.study.factors import factors_of, hidden_factors

HEADS = {
    'ContrastiveHead': {},
    'RegressionHead': {},
    'DINOHead': dict(prototypes=8),
    'SwAVHead': dict(channels=8, prototypes=8),
}


@pytest.fixture(scope='module')
def cfg():
    register()
    return load_config('configs/demo/mocov2plus_shapes.py')


@pytest.mark.parametrize('name', HEADS)
def test_directions_are_summed_or_averaged_as_stated(cfg, name):
    head = MODELS.build(dict(type=name, **HEADS[name])).double().eval()
    q, k = ({view: torch.randn(6, 8, dtype=torch.float64) for view in (0, 1)} for _ in range(2))
    negatives = F.normalize(torch.randn(20, 8, dtype=torch.float64), dim=1)
    one, other = (head({view: q[view]}, {1 - view: k[1 - view]}, negatives)['loss'] for view in (0, 1))
    share = head(q, k, negatives)['loss'] / (one + other)
    cfg = cfg.copy()
    cfg.model.head = dict(type=name, **HEADS[name])
    stated = hidden_factors(cfg)['directions of the loss']
    assert share.item() == pytest.approx({'summed': 1, 'averaged': 1 / 2}[stated])


def test_no_logit_is_clamped(cfg):
    head = MODELS.build(dict(type='ContrastiveHead', temperature=1e-4))
    assert hidden_factors(cfg)['clamps in the loss'] == 'none'
    q, k = torch.eye(2, dtype=torch.float64)[[0]], torch.eye(2, dtype=torch.float64)[[1]]
    # The expected loss equals the largest logit, 10 000. Clamped logits would give a smaller loss.
    assert head.pair(q, k, q)['loss'].item() == pytest.approx(1e4)


@pytest.mark.parametrize('settings', [dict(type='LARS'), dict(type='LARS', inside=False), dict(type='SGD')], ids=str)
def test_rate_is_inside_the_momentum_buffer_as_stated(cfg, settings):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = OPTIMIZERS.build(dict(params=[weight], lr=1.0, momentum=0.9, **settings))
    weight.grad = torch.ones(3)
    optimizer.step()
    before, optimizer.param_groups[0]['lr'] = weight.detach().clone(), 0.0
    optimizer.step()
    cfg = cfg.copy()
    cfg.optim_wrapper.optimizer = dict(lr=1.0, **settings)
    where = 'outside' if weight.equal(before) else 'inside'
    assert hidden_factors(cfg)['rate'] == f'{where} of the momentum buffer'


def test_features_are_the_students_pooled(cfg, tmp_path):
    student, teacher = (load_backbone(cfg, seed=seed) for seed in (0, 1))
    parts = {'backbone.': student, 'teacher.backbone.': teacher}
    state = {prefix + key: value for prefix, net in parts.items() for key, value in net.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'both.pth')
    images = torch.randn(2, 3, 28, 28)
    features = pooled(load_backbone(cfg, tmp_path / 'both.pth')(images))
    assert features.equal(student(images)[-1].mean(dim=(2, 3)))
    assert hidden_factors(cfg)['features'] == "the student's, pooled after the backbone"


def test_factors_of_missing_components_are_none(cfg):
    assert factors_of(load_config('configs/vit/byol_vit_s16_300e.py'))['batch norm'].startswith('none')
    byol = load_config('configs/byol_r50_200e.py')
    assert hidden_factors(byol)["teacher's update"] == 'each optimizer step k = 1..K, cosine'
    byol.model.target = 'student'
    assert hidden_factors(byol)["teacher's update"] == 'none'
    cfg = cfg.copy()
    cfg.model.symmetric = False
    assert hidden_factors(cfg)['directions of the loss'] == 'one'
    cfg.model.head = dict(type='DINOHead', prototypes=8)
    cfg.model.symmetric = True
    assert hidden_factors(cfg)['directions of the loss'] == 'averaged'
    cfg.model.head = dict(type='LeJEPAHead')
    assert hidden_factors(cfg)['clamps in the loss'] == 'by the rule of LeJEPAHead'
    supervised = hidden_factors(load_config('configs/supervised/supervised_r50_100e.py'))
    parts = ('directions of the loss', 'clamps in the loss', "teacher's update")
    assert {supervised[part] for part in parts} == {'none'}

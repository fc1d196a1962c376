"""The configs: every one builds, and neighbours on the ladder differ in one factor."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmairl.study.factors import LADDER, changed, factors_of

CONFIGS = Path(__file__).parent.parent / 'configs'

# The factor that each rung changes, in the facts' words, and the config keys that it may touch.
RUNGS = {
    ('mocov2', 'mocov2_syncbn'): ('batch norm', {'model.backbone.norm_cfg', 'model.projector', 'model.shuffle_bn'}),
    ('mocov2_syncbn', 'mocov2_syncbn_predictor'): ('student predictor', {'model.predictor'}),
    ('mocov2_syncbn_predictor', 'mocov2_syncbn_predictor_momentum'): ('momentum', {'default_hooks.momentum'}),
    ('mocov2_syncbn_predictor_momentum', 'mocov2plus'): ('loss', {'model.symmetric'}),
    ('mocov2plus', 'mocov2plus_complexaug'): ('augmentation', {'train_dataloader.dataset.views'}),
    ('mocov2plus', 'smocov2plus'): (
        'teacher predictor',
        {'model.teacher_predictor', 'model.projector.last_bias', 'model.predictor.last_bias'},
    ),
    ('mocov2plus', 'mocov2plus_lars'): ('optimizer', {'optim_wrapper'}),
    ('mocov2plus_complexaug', 'byol'): ('loss', {'model.head', 'model.queue'}),
    ('byol', 'byol_lars'): ('optimizer', {'optim_wrapper'}),
}


def load(name: str) -> Config:
    return Config.fromfile(CONFIGS / f'{name}_r50_200e.py')


@pytest.mark.parametrize('pair', RUNGS, ids=' -> '.join)
def test_neighbours_differ_in_one_factor(pair):
    factor, allowed = RUNGS[pair]
    one, two = map(load, pair)
    keys = changed(one, two)
    assert keys, 'a rung must change something'
    strays = [key for key in keys if not any(key == prefix or key.startswith(f'{prefix}.') for prefix in allowed)]
    assert not strays, f'{pair[1]} changes more than its {factor}: {strays}'
    before, after = factors_of(one), factors_of(two)
    # BYOL has no queue because its loss wants none: negatives are the loss's other half, not a second factor
    assert {name for name in before if before[name] != after[name]} - {'negatives'} == {factor}
    print(f'{pair[0]} -> {pair[1]}: {factor}')


def test_the_ladder_is_a_chain_of_inheritance():
    for below, above in zip(LADDER, LADDER[1:]):
        text = (CONFIGS / f'{above}_r50_200e.py').read_text()
        assert f'{below}_r50_200e.py' in text, f'{above} does not inherit from {below}'

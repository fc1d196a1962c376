"""The ladder of configs: neighbours differ in one factor."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mmairl.study.factors import changed, factors_of, markdown

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
PROJECTOR_TOO = {('mocov2', 'mocov2_syncbn'), ('mocov2plus', 'smocov2plus')}


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
    differing = {name for name in before if before[name] != after[name]} - {'negatives'}
    # Two rungs change the projector as well, and the docs' table shows it: the release widens it with SyncBN, and drops biases
    assert differing - ({'projector'} if pair in PROJECTOR_TOO else set()) == {factor}
    assert (pair in PROJECTOR_TOO) == ('projector' in differing)


def test_the_table_of_the_docs_is_the_configs():
    page = CONFIGS.parent / 'docs' / 'frameworks.md'
    assert page.read_text().endswith(markdown(CONFIGS)), (
        'put what python tools/factors.py prints at the end of the page'
    )


def test_the_factors_are_those_of_the_papers_table():
    """Facts, section 1, row by row; written down here by hand."""
    shown = {name: factors_of(load(name)) for name in ('mocov2', *(pair[1] for pair in RUNGS))}
    for name, factors in shown.items():
        assert factors['student predictor'] == ('no' if name in ('mocov2', 'mocov2_syncbn') else 'yes')
        assert factors['teacher predictor'] == ('yes' if name == 'smocov2plus' else 'no')
        assert factors['negatives'] == ('none' if name.startswith('byol') else 'queue 65536')
        early = name in ('mocov2', 'mocov2_syncbn', 'mocov2_syncbn_predictor')
        assert factors['momentum'] == ('constant 0.999' if early else '0.99 -> 1, cosine')
        one_way = early or name == 'mocov2_syncbn_predictor_momentum'
        kind = '2 - 2 cos' if name.startswith('byol') else 'InfoNCE'
        assert factors['loss'] == f'{kind}, {"one direction" if one_way else "both directions"}'
        assert factors['batch norm'] == ('ShuffleBN' if name == 'mocov2' else 'SyncBN, SyncBN in projector')
        width = '2048-128' if name == 'mocov2' else '4096-256'
        assert factors['projector'] == width + (', no last bias' if name == 'smocov2plus' else '')
        lars = name.endswith('_lars')
        assert factors['optimizer'] == ('LARS, lr 1.2, decay 1e-06' if lars else 'SGD, lr 0.12, decay 0.0001')
        assert ('solarize' in factors['augmentation']) == (name.startswith('byol') or name.endswith('complexaug'))

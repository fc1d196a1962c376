"""Test scales, which make the configs of a study smaller: they change all rows in the same way, keep the factor that a
study tests, and leave small configs unchanged.
"""

from pathlib import Path

import pytest
import torch
import yaml
from harness.errors import raises_code
from study.test_spec import at, written

from mmairl.config import load_config
from mmairl.data.shapes import Shapes
from mmairl.study import scale as scales
from mmairl.study.commands import prepare_study, seeds_at
from mmairl.study.cost import cost, epochs
from mmairl.study.fairness import at_scale
from mmairl.study.scale import network_names, read_scale, resolve
from mmairl.study.spec import Row, read_study

ROOT = Path(__file__).parents[2]
SHAPES = 'demo/mocov2plus_shapes.py'


def gray_probabilities(cfg) -> set[float]:
    views = cfg.model.data_preprocessor.get('views') or cfg.train_dataloader.dataset.get('views')
    return {step.get('p') for view in views for step in view if step['type'] == 'RandomGrayscale'}


def test_gray_shapes_have_equal_channels():
    color, gray = (Shapes('val', count=12, gray=value)[1]['inputs'][0] for value in (False, True))
    assert not torch.equal(color[0], color[1])
    assert torch.equal(gray[0], gray[1]) and torch.equal(gray[1], gray[2])


def test_gray_transform_is_removed_at_gray_scales():
    for scale, expected in (('in1k', {0.2}), ('cifar', {0.2}), ('demo', set()), ('quarter', set())):
        study, configs = at('augmentation', scale)
        assert gray_probabilities(configs[study.rows[0].name]) == expected
        assert gray_probabilities(configs['MoCo v2+, no grey']) == set()
    _, _, left_out = at_scale(at('augmentation', 'demo')[0], read_scale('demo'), ['knn'])
    assert len(left_out) == 3 and all('no grey' in sentence for sentence in left_out)


@pytest.mark.parametrize('scale, expected', [('demo', 12), ('cifar', 200), ('in100', 200), ('in1k', 200)])
def test_runs_counted_in_iterations_keep_their_epochs(scale, expected):
    study, configs = at('data_variation', scale)
    for row in study.rows:
        if row.group != 'supervised':
            assert epochs(configs[row.name], read_scale(scale).images) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize('name', ['architectures_r18', 'architectures_r101', 'taxonomies'])
def test_scale_that_changes_the_question_is_an_error(name):
    for scale in ('demo', 'cifar', 'half'):
        with raises_code('scale-changes-question'):
            prepare_study(ROOT / f'configs/studies/{name}.yaml', scale)


def test_small_scales_run_at_least_three_seeds(tmp_path):
    one_seed = read_study(written(tmp_path, seeds=[7]))
    four_seeds = read_study(written(tmp_path, seeds=[4, 5, 6, 7]))
    external = read_study(written(tmp_path, {}, dict(weights={0: 'a.pth'}), seeds=[0]))
    for scale in map(read_scale, ('demo', 'quarter', 'half')):
        assert seeds_at(scale, one_seed) == (0, 1, 2)
        assert seeds_at(scale, four_seeds) == (4, 5, 6, 7)
        assert seeds_at(scale, external) == (0,), 'the seeds of external checkpoints are changed'
    assert seeds_at(read_scale('in1k'), one_seed) == (7,)
    assert prepare_study(written(tmp_path, seeds=[7]), 'demo', out=tmp_path).study.seeds == (0, 1, 2)


def test_wide_classifier_reads_all_features():
    options = {'model.backbone.base_channels': 128, 'model.in_channels': 4096}
    cfg = resolve(Row('wide', 'supervised/supervised_r50_100e.py', options), read_scale('cifar'))
    assert cfg.model.in_channels == 2 * 512


def test_caption_names_the_networks_of_the_rows(tmp_path):
    captions = []
    for name, scale in (('architectures_r101', 'in1k'), ('byol_wide', 'in1k'), ('ladder', 'cifar')):
        prepared = prepare_study(ROOT / f'configs/studies/{name}.yaml', scale, out=tmp_path)
        captions.append(prepared.scale.text.partition(' on ')[0])
    assert captions[0] == 'ResNet-101' and captions[2] == 'ResNet-18 (CIFAR stem)'
    assert captions[1].startswith('ResNet-50, ResNet-50 of base width 128, ')
    assert network_names([load_config('configs/vit/byol_vit_s16_300e.py')]) == 'VisionTransformer'


def test_small_config_is_left_as_it_is(tmp_path):
    rows = (dict(config=SHAPES), dict(config=SHAPES, options={'model.symmetric': False}, declares=['model.symmetric']))
    study = read_study(written(tmp_path, *rows))
    _, configs, _ = at_scale(study, read_scale('demo'), ['knn'])
    small = load_config(f'configs/{SHAPES}')
    assert configs['one'].to_dict() == small.to_dict()
    assert cost(configs['one'], read_scale('demo')).epochs == small.train_cfg.max_epochs


def test_undeclared_small_config_is_an_error():
    with raises_code('already-small'):
        resolve(Row('a', 'mocov2_r50_200e.py', options={'model.backbone.base_channels': 16}), read_scale('demo'))


def test_config_is_found_next_to_its_study(tmp_path, monkeypatch):
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs' / 'own.py').write_text("_base_ = 'mmairl::mocov2plus_r50_200e.py'\n")
    path = tmp_path / 'study.yaml'
    path.write_text(yaml.safe_dump(dict(title='t', rows=[dict(name='a', config='configs/own.py')])))
    monkeypatch.chdir('/')
    row = read_study(path).rows[0]
    assert resolve(row, read_scale('in1k')).filename == str(tmp_path / 'configs' / 'own.py')


def test_lars_without_trust_has_the_rate_of_sgd():
    plain = dict(type='LARS', lr=0.12, momentum=0.9, weight_decay=1e-4, trust=False)
    options = {'optim_wrapper.optimizer': {'_delete_': True, **plain}}
    without_trust = resolve(Row('a', 'mocov2plus_r50_200e.py', options=options), read_scale('demo'))
    sgd = resolve(Row('b', 'mocov2plus_r50_200e.py'), read_scale('demo'))
    assert without_trust.optim_wrapper.optimizer.lr == sgd.optim_wrapper.optimizer.lr


def test_plan_reads_each_config_once(monkeypatch):
    names = []
    monkeypatch.setattr(scales, 'load_config', lambda path: names.append(Path(path).name) or load_config(path))
    study = read_study(ROOT / 'configs/studies/attribution.yaml')
    # A second plan reads the files again, since the files may have changed in the meantime.
    for plans in (1, 2):
        at_scale(study, read_scale('in100'), ['knn'])
        assert names == ['mocov2_r50_200e.py'] * plans


def test_rows_of_one_config_do_not_share_changes():
    options = {'model.symmetric': True}
    changed, plain = (resolve(Row('a', SHAPES, options=each), read_scale('demo')) for each in (options, {}))
    changed.model.symmetric = 'changed'
    assert plain.model.symmetric == load_config(f'configs/{SHAPES}').model.symmetric

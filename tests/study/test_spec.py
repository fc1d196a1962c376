"""Studies in YAML files: valid and invalid content, and the studies that come with the package."""

import copy
import json
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
import yaml
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.apis.compare import UNCHANGED
from mmairl.config import load_config
from mmairl.errors import UserError
from mmairl.registry import MODELS
from mmairl.study.collect import collect, row_differences
from mmairl.study.cost import flops, flops_per_image
from mmairl.study.factors import changed, hidden_factors
from mmairl.study.fairness import at_scale, compare_configs, require_fair
from mmairl.study.published import tables
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row, Study, read_study

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / 'configs' / 'studies'

ROWS = (
    dict(name='one', config='mocov2plus_r50_200e.py'),
    dict(name='two', config='mocov2plus_lars_r50_200e.py', declares=['optim_wrapper'], factor='LARS'),
)


def written(folder: Path, *changes: dict, **others) -> Path:
    """Write a study of two rows. Each positional argument changes a row; the other arguments are keys of the study."""
    rows = [{**row, **change} for row, change in zip_longest(ROWS, changes, fillvalue={})]
    path = folder / 'two.yaml'
    usual = {} if 'cross' in others else dict(rows=rows)
    # A study with a search states `searches` instead of `seeds`.
    usual |= {} if 'search' in others else dict(seeds=[0, 1])
    study = {'title': 'Two rows', **usual, **others}
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def printed(study: str, row: str) -> dict[str, float]:
    study = read_study(STUDIES / f'{study}.yaml')
    return study.published_numbers(next(entry for entry in study.rows if entry.name == row))


def resolved(study: Study, scale: str = 'in1k') -> dict[str, Config]:
    return {row.name: resolve(row, read_scale(scale)) for row in study.rows}


@cache
def at(name: str, scale: str, folder: str = 'configs') -> tuple[Study, dict[str, Config]]:
    """Return a built-in study at a scale, with the configs of its rows."""
    study = read_study(ROOT / folder / f'studies/{name}.yaml')
    return study, resolved(study, scale)


def test_built_in_study_is_read_by_name():
    assert read_study(Path('mmairl::studies/ladder.yaml')).name == 'ladder'
    with raises_code('no-config', match='mmairl::studies/ladder.yaml'):
        read_study('mmairl::studies/laddder.yaml')


def test_smaller_scale_keeps_factors_and_adds_none():
    full, small = (compare_configs(*at('ladder', scale)) for scale in ('in1k', 'demo'))
    for one, other in zip(full, small):
        parts = [
            {'views' if 'views' in key else '.'.join(key.split('.')[:2]) for key in entry['found']}
            for entry in (one, other)
        ]
        assert parts[0] == parts[1]


def test_rate_follows_the_batch_size_of_a_scale():
    """Learning rates are proportional to the batch size, whatever the batch size of the config is."""
    (study, full), (_, small) = (at('msbreg', scale, 'projects/msbreg') for scale in ('in1k', 'in100'))
    for row in study.rows:
        cfgs = full[row.name], small[row.name]
        one, other = (cfg.optim_wrapper.optimizer.lr / cfg.total_batch_size for cfg in cfgs)
        assert one == pytest.approx(other), f'{row.name}: the learning rate is not proportional to the batch size'


def test_demo_shrinks_every_part_of_every_method():
    for name, cfg in at('methods', 'demo')[1].items():
        assert max(max(param.shape) for param in MODELS.build(cfg.model).parameters()) <= 256, (
            f'{name}: a part is too wide'
        )


def test_relative_widths_are_kept_at_every_scale():
    for scale in ('demo', 'cifar'):
        methods = at('methods', scale)[1]
        simsiam, barlow = methods['SimSiam'].model, methods['Barlow Twins'].model
        hidden = methods['BYOL'].model.projector.hidden_channels
        predictor = simsiam.predictor
        assert {simsiam.projector.out_channels, predictor.in_channels, predictor.out_channels} == {hidden}
        assert predictor.hidden_channels == hidden // 4 and barlow.projector.out_channels == hidden
        assert methods['SwAV, small crops'].model.head.channels == methods['BYOL'].model.projector.out_channels < hidden


PARTS = [('DINO', 'projector', dict(prototypes=128)), ('SwAV, small crops', 'head', dict(channels=32))]


@pytest.mark.parametrize('row, part, keys', PARTS)
def test_plan_with_parts_that_do_not_fit_is_an_error(row, part, keys):
    cfg = copy.deepcopy(at('methods', 'demo')[1][row])
    cfg.model[part].update(keys)
    with raises_code('head-width'):
        flops_per_image(cfg)


def test_published_numbers_are_the_papers():
    columns = tables()['revisit_airl']['table8_normrescale_anchors']['columns']
    assert printed('ladder', 'MoCo v2')['voc07_ap50'] == 76.5 and printed('ladder', 'BYOL (SGD)')['in1k'] == 72.1
    rescaled = printed('normrescale', 'NormRescale by BYOL (SGD)')
    assert dict(zip(columns, [76.6, 48.1, 51.6, 82.1, 56.7, 62.9])).items() <= rescaled.items()
    assert printed('byol_target', 'momentum 0.99') == {'top1': 72.5}
    assert printed('byol_variants', 'SimCLR') == {'top1': 69.4}, 'a flag of a published row counts as a score'
    assert 'asymmetric' not in printed('asymmetry', 'MoCo v2+')


TWO_KEYS = {'total_batch_size': 512, 'model.head.temperature': 0.1}


@pytest.mark.parametrize(
    'second, keys',
    [
        (dict(options=TWO_KEYS), 'model.head.temperature, total_batch_size'),
        (dict(options={'custom_hooks': [{'type': 'EMAHook'}]}), 'custom_hooks'),
        (dict(declares=[]), 'optim_wrapper'),  # Without declarations, the rows must be equal
        (dict(declares=[], against=None), 'optim_wrapper'),
        (dict(declares=['optim']), 'optim_wrapper'),  # A declared prefix must consist of whole keys
    ],
)
def test_undeclared_difference_is_an_error(tmp_path, second, keys):
    study = read_study(written(tmp_path, {}, second))
    with pytest.raises(UserError, match=rf"'two' differs from 'one' in undeclared keys \({keys}"):
        require_fair(compare_configs(study, resolved(study)))


@pytest.mark.parametrize(
    'second, code, hint',
    [
        (dict(options={'model.heat.temperature': 0.1}), 'unknown-key', 'head'),
        (dict(config='mocov2plus_lar_r50_200e.py'), 'no-config', 'mocov2plus_lars_r50_200e.py'),
    ],
)
def test_misspelled_option_or_config_names_its_row(tmp_path, second, code, hint):
    with raises_code(code, match=f"^row 'two': .*did you mean '{hint}'"):
        resolved(read_study(written(tmp_path, {}, second)))


def cross(**others) -> dict:
    levels = [{'off': {}, 'on': {key: value}} for key, value in (('total_batch_size', 512), ('model.symmetric', False))]
    declared = ['total_batch_size'], ['model.symmetric']
    factors = [dict(name=name, declares=keys, levels=level) for name, keys, level in zip('ab', declared, levels)]
    return {'config': 'mocov2plus_r50_200e.py', 'factors': factors, **others}


def test_factors_are_crossed_into_a_design(tmp_path):
    study = read_study(written(tmp_path, cross=cross()))
    assert [row.name for row in study.rows] == ['off, off', 'off, on', 'on, off', 'on, on']
    assert study.design.rows['on, off'] == (1, 0)
    configs = resolved(study)
    require_fair(compare_configs(study, configs))
    assert [cfg.total_batch_size for cfg in configs.values()] == [1024, 1024, 512, 512]
    one_direction = [spent / flops(configs)['off, off'] for spent in flops(configs).values()]
    assert one_direction == pytest.approx([1, 0.5, 1, 0.5], rel=0.02)
    hidden = [hidden_factors(cfg)['directions of the loss'] for cfg in configs.values()]
    assert hidden == ['summed', 'one', 'summed', 'one']
    three = cross()
    three['factors'][0]['levels']['more'] = {'total_batch_size': 256}
    study = read_study(written(tmp_path, cross=three))
    assert len(study.rows) == 6 and study.design is None
    with raises_code('not-two-levels'):
        read_study(written(tmp_path, cross={**three, 'fraction': 0.5}))


def test_crossed_row_declares_its_differences_from_the_first(tmp_path):
    study = read_study(written(tmp_path, cross=cross(levels=[[1, 1], [0, 1], [1, 0]])))
    assert [row.factor for row in study.rows] == ['', 'a', 'b']
    require_fair(compare_configs(study, resolved(study)))


def test_declared_views_on_the_device_may_differ(tmp_path):
    views = {'model.data_preprocessor.views': [[dict(type='RandomFlip', p=p)] for p in (0.1, 0.2)]}
    for declared in ('model', 'model.data_preprocessor.views', 'train_dataloader.dataset.views'):
        second = dict(config=ROWS[0]['config'], options=views, declares=[declared])
        study = read_study(written(tmp_path, {}, second))
        require_fair(compare_configs(study, resolved(study)))


def test_only_trained_rows_watch_test_images(tmp_path):
    watching = dict(options={'custom_hooks': [dict(type='OnlineKNNHook', images='test')]})
    study = read_study(written(tmp_path, watching, dict(watching, untrained='random')))
    sentences = collect(study, resolved(study), read_scale('in1k'), [], tmp_path)['rows_left_out']
    assert [sentence for sentence in sentences if 'test images' in sentence] == [
        "the runs of 'one' were measured on the test images during training"
    ]


def test_keys_of_a_row_that_is_left_out_are_unknown():
    _, configs = at('byol_target', 'in1k')
    name, *_ = configs
    assert row_differences(configs, name, name) == []
    assert row_differences(configs, name, 'left out') is None


def test_head_that_reads_values_is_not_counted():
    """A forward and a backward pass together cost as much as three forward passes.

    The teacher of MoCo v2+ adds a fourth forward pass. VICReg has no teacher.
    """
    vicreg = Row('a', 'configs/methods/vicreg_r50_1000e.py')
    costs = [flops_per_image(resolve(row, read_scale('in1k'))) for row in (vicreg, Row('b', 'mocov2plus_r50_200e.py'))]
    assert costs[0] / costs[1] == pytest.approx(3 / 4, abs=0.04)


def test_attribution_ends_are_rows_of_the_ladder(tmp_path):
    """The first and the last row of the full design equal rows of the study `ladder`.

    Only the projector's width of the first row differs, and only at the scale in1k.
    """
    content = yaml.safe_load((STUDIES / 'attribution.yaml').read_text())
    assert read_study(STUDIES / 'attribution.yaml').design.resolution == 5
    del content['cross']['fraction']
    (tmp_path / 'whole.yaml').write_text(yaml.safe_dump(content, sort_keys=False))
    rows, ladder = read_study(tmp_path / 'whole.yaml').rows, read_study(STUDIES / 'ladder.yaml').rows
    for scale, widths in (('in1k', ['model.projector.hidden_channels', 'model.projector.out_channels']), ('demo', [])):
        ends = [resolve(row, read_scale(scale)) for row in (rows[0], ladder[0], rows[-1], ladder[5])]
        # A tuple equals a list after this conversion.
        ends = [Config(json.loads(json.dumps(cfg.to_dict()))) for cfg in ends]
        assert (changed(*ends[:2]), changed(*ends[2:])) == (widths, [])


ONE = dict(name='a', config='x')


@pytest.mark.parametrize(
    'changes, code',
    [
        (dict(seedz=[1]), 'wrong-content'),
        (dict(rows=[]), 'no-rows'),
        (dict(rows=[dict(name='a')]), 'no-config'),
        (dict(rows=[ONE, dict(ONE, name='A')]), 'same-row-name'),
        (dict(rows=[dict(ONE, against='b')]), 'unknown-row'),
        (dict(rows=[dict(ONE, published='z')]), 'no-published-row'),
        (dict(rows=[dict(ONE, untrained='random', weights={0: 'a.pth'})]), 'several-origins'),
        (dict(rows=[dict(ONE, trained='a.yaml')]), 'trained-without-weights'),
        (dict(rows=[ONE, dict(ONE, name='b', rescaled=dict(of='a'))]), 'anchor-or-constant'),
        (dict(look=[dict(instrument='cka', rows=['one', 'z'])]), 'unknown-row'),
        (dict(look=[dict(instrument='cka', rows=['one'], layer='predictor')]), 'layer-without-geometry'),
        (dict(paper=dict(table='revisit_airl.table9')), 'no-published-table'),
        *((dict(equivalence=value), 'wrong-content') for value in (0, -1, 'wide', True)),
        (dict(primary={'demo': 'svm'}), 'primary-not-a-task'),
        (dict(seeds=[0, 0]), 'repeated-seed'),
        (dict(cross=cross(fraction='1/2')), 'confused-effects'),
        (dict(cross=cross(fraction='1/3')), 'wrong-fraction'),
        (dict(cross=cross(fraction='half')), 'wrong-fraction'),
        (dict(cross=cross(interactions=[['a', 'c']])), 'not-an-interaction'),
        *((dict(cross=cross(levels=[[0, 0], wrong])), 'wrong-levels') for wrong in ([0], [0, 2], [-1, 0])),
        (dict(cross=cross(fractions='1/2')), 'wrong-content'),
    ],
)
def test_invalid_study_is_an_error(tmp_path, changes, code):
    path = written(tmp_path, **changes)
    with raises_code(code, match=f'^{path}: '):
        read_study(path)


@pytest.mark.parametrize(
    'setting, name', [(dict(fraction='1/2'), r"fraction \('1/2'\)"), (dict(levels=[[0, 0], [1, 1]]), 'levels')]
)
def test_error_names_the_key_that_confuses_effects(tmp_path, setting, name):
    with raises_code('confused-effects', match=f'{name}: the runs cannot separate'):
        read_study(written(tmp_path, cross=cross(**setting)))


def test_published_top_1_is_next_to_linear(tmp_path):
    study, configs = at('byol_target', 'in1k')
    record = collect(study, configs, read_scale('in1k'), [], tmp_path)
    assert record['published_metrics'] == [dict(key='linear', label='top1')]
    assert all(set(row['published']) == {'linear'} for row in record['rows'])


def test_rows_of_any_name_have_distinct_folders():
    names = ['MoCo v2+, SGD', '学習率', '温度', 'a' * 300, 'a' * 301]
    slugs = [Row(name, '').slug for name in names]
    assert slugs[0] == 'moco_v2_plus_sgd' and len(set(slugs)) == 5
    assert all(0 < len(slug.encode()) <= 150 for slug in slugs)


def test_rows_with_other_initial_weights_are_not_equal(tmp_path):
    other = dict(config='mocov2plus_r50_200e.py', declares=['load_from'])
    study = read_study(written(tmp_path, {}, dict(other, options={'load_from': 'imagenet.pth'})))
    planned, configs, left_out = at_scale(study, read_scale('demo'), ['knn'])
    assert [row.name for row in planned.rows if row.trains] == ['one', 'two'] and not left_out
    assert changed(configs['one'], configs['two']) == ['load_from']
    null = [dict(untrained='random', declares=['model']), dict(untrained='random', config='vit/byol_vit_s16_300e.py')]
    study = read_study(written(tmp_path, *(dict(row, name=f'null {n}') for n, row in enumerate(null))))
    assert len(at_scale(study, UNCHANGED, ['knn'])[0].rows) == 2


def test_warm_up_in_iterations_keeps_its_share(tmp_path):
    study = read_study(STUDIES / 'data_variation.yaml')
    cfg = resolved(study, 'demo')[study.rows[0].name]
    whole, warm_up = cfg.train_cfg.max_iters, cfg.param_scheduler[0].end
    before = load_config(f'configs/{study.rows[0].config}', study.rows[0].options)
    assert warm_up / whole == pytest.approx(before.param_scheduler[0].end / before.train_cfg.max_iters, rel=0.01)


def test_schedules_with_lengths_of_their_own_are_shortened(tmp_path):
    schedules = [dict(type='MultiStepLR', milestones=[120, 160]), dict(type='CosineAnnealingLR', T_max=200)]
    study = read_study(written(tmp_path, dict(options=dict(param_scheduler=schedules))))
    cfg = resolved(study, 'demo')['one']
    steps, cosine = cfg.param_scheduler
    assert cfg.train_cfg.max_epochs == steps.end == cosine.T_max == 12
    assert steps.milestones == [7, 10]

"""Studies as YAML: what is read, what is refused, and that those that come with mmairl are fair."""

import json
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

from mmairl.errors import UserError
from mmairl.study.collect import collect
from mmairl.study.factors import changed, hidden_factors
from mmairl.study.guard import compare, require_fair
from mmairl.study.plan import passes
from mmairl.study.published import tables
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Study, read_study

STUDIES = Path(__file__).parents[2] / 'configs' / 'studies'

ROWS = (
    dict(name='one', config='mocov2plus_r50_200e.py'),
    dict(name='two', config='mocov2plus_lars_r50_200e.py', declares=['optim_wrapper'], factor='LARS'),
)


def written(folder: Path, *changes: dict, **others) -> Path:
    """A study of two rows, each changed as said, and with other keys."""
    rows = [{**row, **change} for row, change in zip_longest(ROWS, changes, fillvalue={})]
    path = folder / 'two.yaml'
    path.write_text(yaml.safe_dump({'title': 'Two rows', 'seeds': [0, 1], 'rows': rows, **others}, sort_keys=False))
    return path


def resolved(study: Study, scale: str = 'in1k') -> dict[str, Config]:
    return {row.name: resolve(row, read_scale(scale)) for row in study.rows}


@cache
def at(name: str, scale: str) -> tuple[Study, dict[str, Config]]:
    """A ready study and its rows' configs at a scale."""
    study = read_study(STUDIES / f'{name}.yaml')
    return study, resolved(study, scale)


@pytest.mark.parametrize(
    'name, scale', [('ladder', 'demo'), pytest.param('asymmetry', 'in100', marks=pytest.mark.slow)]
)
def test_a_smaller_scale_keeps_the_factors_and_adds_none(name, scale):
    full, small = (compare(*at(name, which)) for which in ('in1k', scale))
    for one, other in zip(full, small):
        parts = [
            {'views' if 'views' in key else '.'.join(key.split('.')[:2]) for key in found['found']}
            for found in (one, other)
        ]
        assert parts[0] == parts[1]


def test_a_smaller_batch_is_the_usual_one_in_parts():
    """As BYOL's Fig. 3a: the gradient is averaged over N steps, and the rate stays."""
    study, configs = at('batch_size', 'in1k')
    for row in study.rows:
        cfg = configs[row.name]
        assert cfg.optim_wrapper.get('accumulative_counts', 1) == 4096 / row.x and cfg.total_batch_size == 4096


def test_a_scale_with_another_batch_has_the_rate_that_belongs_to_it():
    """Rates are linear in the batch, whichever a config begins with."""
    (study, full), (_, small) = at('msbreg', 'in1k'), at('msbreg', 'in100')
    for row in study.rows:
        rates = [
            configs[row.name].optim_wrapper.optimizer.lr / configs[row.name].total_batch_size
            for configs in (full, small)
        ]
        assert rates[0] == pytest.approx(rates[1]), row.name


def test_published_numbers_are_the_papers():
    ladder = read_study(STUDIES / 'ladder.yaml')
    assert ladder.row('MoCo v2').published['voc07_ap50'] == 76.5 and ladder.row('BYOL (SGD)').published['in1k'] == 72.1
    rescaled = read_study(STUDIES / 'normrescale.yaml').row('NormRescale by BYOL (SGD)')
    columns = tables()['revisit_airl']['table8_normrescale_anchors']['columns']
    assert dict(zip(columns, [76.6, 48.1, 51.6, 82.1, 56.7, 62.9])).items() <= rescaled.published.items()
    assert read_study(STUDIES / 'byol_target.yaml').row('momentum 0.99').published == {'top1': 72.5}
    assert read_study(STUDIES / 'byol_variants.yaml').row('SimCLR').published['top1'] == 69.4


@pytest.mark.parametrize(
    'second, found',
    [
        (
            dict(options={'total_batch_size': 512, 'model.head.temperature': 0.1}),
            'model.head.temperature, total_batch_size',
        ),
        (dict(declares=[]), 'optim_wrapper'),  # declaring nothing is declaring that nothing differs
        (dict(declares=[], against=None), 'optim_wrapper'),
        (dict(declares=['optim']), 'optim_wrapper'),  # a prefix declares whole keys only
    ],
)
def test_a_difference_that_nobody_declares_is_refused(tmp_path, second, found):
    study = read_study(written(tmp_path, {}, second))
    with pytest.raises(UserError, match=f"'two' differs from 'one' in {found}"):
        require_fair(compare(study, resolved(study)))


def test_factors_are_crossed(tmp_path):
    loss = dict(name='loss', declares=['model.symmetric'], levels={'both': {}, 'one': {'model.symmetric': False}})
    momentum = dict(
        name='momentum',
        declares=['default_hooks.momentum'],
        levels={'0.99': {}, '0.9': {'default_hooks.momentum.base': 0.9}},
    )
    cross = dict(config='mocov2plus_r50_200e.py', factors=[loss, momentum])
    study = read_study(written(tmp_path, rows=None, cross=cross))
    assert [row.name for row in study.rows] == ['both, 0.99', 'both, 0.9', 'one, 0.99', 'one, 0.9']
    configs = resolved(study)
    require_fair(compare(study, configs))
    assert [passes(cfg) for cfg in configs.values()] == [8, 8, 4, 4]
    hidden = [hidden_factors(cfg)['directions of the loss'] for cfg in configs.values()]
    assert hidden == ['summed', 'summed', 'one', 'one']


def cross(**others) -> dict:
    levels = [{'off': {}, 'on': {key: value}} for key, value in (('total_batch_size', 512), ('model.symmetric', False))]
    declared = ['total_batch_size'], ['model.symmetric']
    factors = [dict(name=name, declares=of, levels=level) for name, of, level in zip('ab', declared, levels)]
    return {'config': 'mocov2plus_r50_200e.py', 'factors': factors, **others}


def test_the_attribution_study_leads_from_mocov2_to_mocov2plus_with_byols_augmentation(tmp_path):
    """Its end points at full size are the ladder's, but for the projector's width, which all rows share."""
    found = yaml.safe_load((STUDIES / 'attribution.yaml').read_text())
    assert read_study(STUDIES / 'attribution.yaml').design.resolution == 5
    del found['cross']['fraction']
    (tmp_path / 'whole.yaml').write_text(yaml.safe_dump(found, sort_keys=False))
    rows, ladder = read_study(tmp_path / 'whole.yaml').rows, read_study(STUDIES / 'ladder.yaml').rows
    for scale, widths in (('in1k', ['model.projector.hidden_channels', 'model.projector.out_channels']), ('demo', [])):
        ends = [resolve(row, read_scale(scale)) for row in (rows[0], ladder[0], rows[-1], ladder[5])]
        ends = [Config(json.loads(json.dumps(cfg.to_dict()))) for cfg in ends]  # a tuple and a list are the same here
        assert (changed(*ends[:2]), changed(*ends[2:])) == (widths, [])


@pytest.mark.parametrize(
    'changes, sentence',
    [
        (dict(fraction='1/2'), "cannot tell 'a' from 'b'; take a larger one"),
        (dict(fraction='1/3'), "the `fraction` of .* is '1/3'; give one of 1/2"),
        (dict(interactions=[['a', 'c']]), r"the interaction \['a', 'c'\] of .* is none of two of its factors: a, b"),
        (dict(fractions='1/2'), "has 'fractions', which nothing reads"),
    ],
)
def test_what_is_wrong_with_a_design_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read_study(written(tmp_path, rows=None, cross=cross(**changes)))


def test_only_factors_with_two_levels_make_a_design(tmp_path):
    three = cross()
    three['factors'][0]['levels']['more'] = {'total_batch_size': 256}
    found = read_study(written(tmp_path, rows=None, cross=three))
    assert len(found.rows) == 6 and found.design is None
    assert read_study(written(tmp_path, rows=None, cross=cross())).design.rows['on, off'] == (1, 0)
    with pytest.raises(UserError, match="the factor 'a' of .* has not two levels"):
        read_study(written(tmp_path, rows=None, cross={**three, 'fraction': 0.5}))


@pytest.mark.parametrize(
    'changes,sentence',
    [
        (dict(sheds=[1]), "has 'sheds', which nothing reads"),
        (dict(rows=[dict(name='a')]), 'lacks a name or a config'),
        (dict(rows=[dict(name='a', config='x'), dict(name='A', config='x')]), 'have the same name'),
        (dict(rows=[dict(name='a', config='x', against='b')]), "builds on 'b', which is no row"),
        (dict(rows=[dict(name='a', config='x', published='z')]), "has no row 'z'"),
        (dict(paper=dict(table='revisit_airl.table9')), "no published table 'revisit_airl.table9'"),
        *((dict(equivalence=value), 'give a number above 0, in points') for value in (0, -1, 'wide', True)),
    ],
)
def test_what_is_wrong_with_a_study_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read_study(written(tmp_path, **changes))


def test_a_plan_runs_no_code_that_options_name(tmp_path, run_tool, capsys):
    """The study is data: only a config in Python that it names is code."""
    backbone = dict(_delete_=True, type='subprocess.run', args=['touch', str(tmp_path / 'ran')])
    path = written(tmp_path, {}, dict(declares=['model'], options={'model.backbone': backbone}))
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/study.py', path, '--dry-run')
    assert "the row 'two' sets model.backbone.type" in capsys.readouterr().err and not (tmp_path / 'ran').exists()


def test_flags_of_a_published_row_are_no_scores_and_top_1_stands_beside_linear_evaluation(tmp_path):
    assert set(read_study(STUDIES / 'byol_variants.yaml').row('SimCLR').published) == {'top1'}
    assert 'asymmetric' not in read_study(STUDIES / 'asymmetry.yaml').rows[0].published
    study, configs = at('byol_target', 'in1k')
    record = collect(study, configs, read_scale('in1k'), [], tmp_path)
    assert record['published_metrics'] == [dict(key='linear', label='top1')]
    assert all(set(row['published']) == {'linear'} for row in record['rows'])

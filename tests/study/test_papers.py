"""The three papers: every table and figure is a study that plans at every scale, a command, or a sentence that says why not."""

import copy
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from scipy import stats
from test_docs import check_command, commands

from mmairl.configs import load_config
from mmairl.optim.schedule import WarmUpLR
from mmairl.registry import MODELS
from mmairl.report.figures import Point, study_scatter
from mmairl.study import scale as scales
from mmairl.study.guard import compare, require_fair
from mmairl.study.published import rows, tables
from mmairl.study.spec import read_study
from mmairl.study.worker import is_local
from mmairl.transfer.tasks import TASKS
from projects.papers.reproduce import coverage, pages

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / 'configs' / 'studies').glob('*.yaml'))
ITEMS = [(paper['paper'], of) for paper in coverage() for of in paper['items']]
read = cache(load_config)


@pytest.fixture
def quick(monkeypatch):
    """Rows, studies and scales share what was read of a file."""

    def load(path, options):
        cfg = copy.deepcopy(read(path))
        cfg.merge_from_dict(options)
        return cfg

    monkeypatch.setattr(scales, 'load_config', load)


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_every_study_plans_at_every_scale_and_names_tasks_that_are_there(quick, path):
    study = read_study(path)
    for name in ('in1k', 'demo', 'cifar', 'in100'):
        compared = compare(study, {row.name: scales.resolve(row, scales.read_scale(name)) for row in study.rows})
        require_fair(compared)
        changes = {entry['row']: entry['found'] for entry in compared}
        assert len(changes) == len(study.rows) - 1, 'each row but the first is compared with one'
        still = [row.name for row in study.rows[1:] if not (row.others or changes[row.name])]
        assert name != 'in1k' or not still, f'rows that change nothing: {still}'
    for task in [*study.tasks['in1k'], *study.measured.values()]:
        assert is_local(task) or task in TASKS, task
        assert not task.partition('@')[2] or (ROOT / f'configs/evaluation/{task.partition("@")[2]}.py').is_file(), task
    names = {row.name for row in study.rows}
    assert all(set(of['rows']) <= names for of in study.look)
    assert set(study.measured) <= {key for row in study.rows for key in row.published}


def test_every_item_of_the_papers_has_a_study_a_command_or_a_reason():
    ready = {path.stem for path in STUDIES}
    for paper, of in ITEMS:
        assert of.keys() & {'studies', 'commands', 'why'}, f'{paper}, {of["item"]}: nothing is said of it'
        assert set(of.get('studies', ())) <= ready, of['item']
        for command in (words for line in of.get('commands', ()) for words in commands(line)):
            check_command(command, set())
    assert ready - {name for _, of in ITEMS for name in of.get('studies', ())} == {'longer_lars'}, 'not of the papers'


def test_the_pages_are_made_from_the_studies():
    for path, text in pages().items():
        assert path.read_text() == text, f'run python projects/papers/reproduce.py, for {path} is another'


def test_every_published_table_says_which_it_is():
    for paper, found in tables().items():
        assert found['paper']
        for name, table in found.items():
            parts = (
                {f'{name}.{key}': part for key, part in table.items()} if name == 'table3_transfer' else {name: table}
            )
            for place, part in parts.items() if isinstance(table, dict) else ():
                assert part['printed'] and rows(f'{paper}.{place}'), place


def test_the_optimal_linear_predictor_is_least_squares_and_the_network_alone_learns():
    load_config(ROOT / 'projects/byol_variants/configs/optimal_linear_r50_300e.py')
    head = MODELS.build(dict(type='OptimalLinearHead', ridge=1e-12))
    q, k = torch.randn(2, 64, 8).unbind()
    best = torch.linalg.lstsq(q.double(), k.double()).solution.float()
    torch.testing.assert_close(head.solve(q, k), best)
    q.requires_grad_()
    loss = head({0: q, 1: q}, {0: k, 1: k}, None)['loss']
    cosine = torch.cosine_similarity(q @ best, k)
    assert loss.item() == pytest.approx(2 * (2 - 2 * cosine).mean().item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, q)
    (expected,) = torch.autograd.grad(2 * (2 - 2 * cosine).mean(), q)
    torch.testing.assert_close(gradient, expected)


def test_the_predictor_has_a_rate_of_its_own_under_lars():
    row = read_study(ROOT / 'configs/studies/byol_predictor.yaml').row('predictor at 10 times the rate')
    network = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ('backbone', 'predictor')})
    own = dict(paramwise_cfg=row.options['optim_wrapper.paramwise_cfg'])
    wrapper = build_optim_wrapper(network, dict(type='OptimWrapper', optimizer=dict(type='LARS', lr=0.1), **own))
    warm_up = WarmUpLR(wrapper, end=5)
    for _ in range(5):
        warm_up.step()
    rates = {id(param): group['lr'] for group in wrapper.param_groups for param in group['params']}
    assert [rates[id(param)] for param in network.parameters()] == pytest.approx([0.1, 0.1, 1.0, 1.0])


def test_the_band_of_a_regression_line_is_that_of_its_mean():
    across, values = (0.0, 1.0, 2.0, 3.0), (1.0, 3.0, 2.0, 5.0)
    (axes,) = study_scatter([Point(dict(group='a'), (y,), '') for y in values], across, 'x').axes
    found = stats.linregress(across, values)
    assert axes.lines[1].get_ydata()[[0, -1]].tolist() == pytest.approx(
        [found.intercept, found.intercept + 3 * found.slope]
    )
    reach = stats.t.ppf(0.975, 2) * found.intercept_stderr  # at x = 0
    at_zero = [y for x, y in axes.collections[0].get_paths()[0].vertices if x == 0]
    assert (min(at_zero), max(at_zero)) == pytest.approx((found.intercept - reach, found.intercept + reach))


def test_uniformity_is_the_mean_over_pairs():
    load_config(ROOT / 'projects/msbreg/configs/byol_uniform_r18_in100_320e.py')
    q = torch.nn.functional.normalize(torch.randn(2, 6, 5, dtype=torch.float64), dim=2)
    pairs = [[math.exp(-2 * (a - b).square().sum()) for a in v for b in v if a is not b] for v in map(list, q)]
    expected = sum(math.log(sum(of) / len(of)) for of in pairs) / 2
    assert MODELS.build(dict(type='UniformityTerm'))(q).item() == pytest.approx(expected)

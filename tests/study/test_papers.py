"""Each table and figure of the three papers has a study that can be planned at every scale, a command, or a reason why it
has none.
"""

import copy
import json
import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from markupsafe import escape
from mmengine.optim import build_optim_wrapper
from scipy import stats
from study.small_runs import rows_of, toy_scale
from study.test_external import complete
from test_docs import check_command, commands

from mmairl.config import load_config
from mmairl.data.shapes import KINDS
from mmairl.engine.optim.warmup import WarmUpLR
from mmairl.errors import UserError
from mmairl.registry import MODELS
from mmairl.report.figures import with_fits
from mmairl.study import published, run_study
from mmairl.study import scale as scales
from mmairl.study.collect import assumptions
from mmairl.study.cost import epochs
from mmairl.study.factors import same_run
from mmairl.study.fairness import at_scale, compare_configs, require_fair
from mmairl.study.pages.study_tables import columns, table_lines
from mmairl.study.spec import Study, read_study
from mmairl.study.task_names import is_local
from mmairl.transfer.tasks import TASKS
from projects.papers.reproduce import coverage, pages

ROOT = Path(__file__).parents[2]
FOLDERS = ('configs', 'projects/judge', 'projects/msbreg')
STUDIES = sorted(path for folder in FOLDERS for path in (ROOT / folder / 'studies').glob('[!_]*.yaml'))


LEFT_OUT = re.compile(r"'(.+)' is left out: at the scale \w+, its runs would equal those of '(.+)'")
ITEMS = [(paper['paper'], item) for paper in coverage() for item in paper['items']]
read_config = cache(load_config)
TREE = dict(entity=('n00021939', 'other'), n00021939=('round', 'frame', 'triangle', 'plus', 'star'))
TREE |= dict(round=('disc', 'ring', 'square'), other=('crescent', 'bar', 'ell', 'heart', 'arrow'))


@pytest.fixture
def quick(monkeypatch):
    """Read each config file only once for all tests."""
    monkeypatch.setattr(scales, 'load_config', lambda path: copy.deepcopy(read_config(path)))


def require_equal_rows(study: Study, scale: scales.Scale, left_out: list[str]) -> None:
    """Check that each row that is left out at a scale would train exactly like the other row in its message."""
    rows = {row.name: row for row in study.rows}
    for sentence in left_out:
        if match := LEFT_OUT.fullmatch(sentence):
            one, other = (scales.resolve(rows[name], scale) for name in match.groups())
            assert same_run(one) == same_run(other), sentence
        else:
            assert study.cross and 'its levels are the same' in sentence


@pytest.mark.parametrize(
    'names', [['in1k'], pytest.param(['demo', 'cifar', 'in100'], marks=pytest.mark.slow)], ids=['in1k', 'small']
)
@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_every_study_plans_at_every_scale(quick, path, names):
    study = read_study(path)
    for name in names:
        scale = scales.read_scale(name)
        try:
            scaled, configs, left_out = at_scale(study, scale, scale.tasks)
        except UserError as error:
            rejected = {('byol_wide', 'demo'): 'nothing-to-compare'}
            if study.unscaled and name != 'in1k':
                rejected[path.stem, name] = 'scale-changes-question'
            assert error.code == rejected[path.stem, name]
            continue
        require_equal_rows(study, scale, left_out)
        compared = compare_configs(scaled, configs)
        require_fair(compared)
        changes = {entry['row']: entry['found'] for entry in compared}
        rows = [row for row in scaled.rows if not row.untrained]
        assert len(changes) == len(rows) - 1, 'a row other than the first is not compared with another row'
        assert all(row.others or row.weights or changes[row.name] for row in rows[1:]), 'a row changes nothing'
        added = [kind for kind in scale.floor if kind == 'random' or name != 'in1k']
        assert [row.untrained for row in scaled.rows[len(rows) :]] == added
        # The projector's width must fit the features of the backbone.
        if name == 'cifar' and path.stem == 'byol_wide':
            MODELS.build(configs['ResNet-50 (4x)'].model)([torch.zeros(2, 3, 32, 32)] * 2, None, mode='loss')
    for task in [*study.tasks['in1k'], *(task.partition(' ')[0] for task in study.measured.values())]:
        assert is_local(task) or task in TASKS, task
        assert not task.partition('@')[2] or (ROOT / f'configs/evaluation/{task.partition("@")[2]}.py').is_file(), task
    assert set(study.measured) <= {key for row in study.rows for key in study.published_numbers(row)}


def test_published_number_belongs_to_one_model(quick):
    """Rows with the same published row must train the same model at the scale in1k.

    Published scores of the same model must be equal, also in different tables, unless a note mentions the difference.
    """
    networks, numbers = {}, {}
    printed = [(study, row) for study in map(read_study, STUDIES) for row in study.rows if row.published is not None]
    for study, row in printed:
        network = same_run(scales.resolve(row, scales.read_scale('in1k'))), row.rescaled, row.along
        for name in row.published if isinstance(row.published, list) else [row.published]:
            name = str(name) if '/' in str(name) else f'{study.paper.table}/{name}'
            assert networks.setdefault(name, network) == network, f'{study.name}: {name} belongs to another network'
            table, _, key = name.rpartition('/')
            for column, value in published.row(name if table else key).items():
                first, other = numbers.setdefault((network, column), (value, name))
                keys = {key, f'{column} of {key}', other.rpartition('/')[2], f'{column} of {other.rpartition("/")[2]}'}
                assert value == first or keys & {*notes(name), *notes(other)}, (
                    f'{name} has {value}, but {other} has {first}'
                )


def notes(name: str) -> dict[str, str]:
    table, texts = published.tables(), {}
    for part in name.rpartition('/')[0].split('.'):
        table = table[part]
        texts |= table.get('notes', {}) if isinstance(table, dict) else {}
    return texts


def test_every_item_of_the_papers_is_covered():
    ready = {path.stem for path in STUDIES}
    for paper, item in ITEMS:
        assert item.keys() & {'studies', 'commands', 'why'}, f'{paper}, {item["item"]}: no study, command or reason'
        assert set(item.get('studies', ())) <= ready, f'{item["item"]}: a study does not exist'
        for command in (words for line in item.get('commands', ()) for words in commands(line)):
            check_command(command, set())
    of_papers = {name for _, item in ITEMS for name in item.get('studies', ())}
    text = """
        aligned byol_to_dino byol_to_simsiam crossover_tuned details explain_byol_release
        explain_lightly explain_sololearn fork_prediction gray judge_example judge_lightly judge_sololearn
        ladder_forks lars_norms longer_lars methods mocov2plus_to_simclr msbreg_centroid
        near_and_far optimizer_mismatch rate_floor release
    """
    assert ready - of_papers == set(text.split())


def test_pages_of_studies_are_up_to_date():
    for path, text in pages().items():
        assert path.read_text() == text, f'{path} is out of date; run python projects/papers/reproduce.py'


def test_study_lists_assumptions_of_rows_and_tasks():
    cfgs = {name: load_config(f'mmairl::{name}_r50_200e.py') for name in ('mocov2plus', 'byol_lars')}
    alone, tasks = assumptions(cfgs), assumptions(cfgs, ['knn', 'finetune@cifar10_lt100_r50'])
    (assumption,) = tasks.keys() - alone.keys()
    assert 'long-tailed' in assumption and tasks[assumption] == list(cfgs)
    assert [names for assumption, names in alone.items() if '4096' in assumption and 'LARS' in assumption] == [
        ['byol_lars']
    ]


def test_predictor_has_its_own_rate_under_lars():
    row = rows_of('byol_predictor')['predictor at 10 times the rate']
    network = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in ('backbone', 'predictor')})
    options = dict(paramwise_cfg=row.options['optim_wrapper.paramwise_cfg'])
    wrapper = build_optim_wrapper(network, dict(type='OptimWrapper', optimizer=dict(type='LARS', lr=0.1), **options))
    warm_up = WarmUpLR(wrapper, end=5)
    for _ in range(5):
        warm_up.step()
    rates = {id(param): group['lr'] for group in wrapper.param_groups for param in group['params']}
    assert [rates[id(param)] for param in network.parameters()] == pytest.approx([0.1, 0.1, 1.0, 1.0])


def test_regression_band_is_that_of_the_mean():
    across, values = (0.0, 1.0, 2.0, 3.0), (1.0, 3.0, 2.0, 5.0)
    points = dict(zip('abcd', zip(across, values)))
    along, middle, low, high = with_fits(points, dict(one='abcd', few='ab'))['fit of one']
    fit = stats.linregress(across, values)
    ends = [fit.intercept, fit.intercept + 3 * fit.slope]
    assert along[0] == 0 and middle[[0, -1]].tolist() == pytest.approx(ends)
    reach = stats.t.ppf(0.975, 2) * fit.intercept_stderr  # This is the standard error at x = 0
    assert (low[0], high[0]) == pytest.approx((fit.intercept - reach, fit.intercept + reach))


def test_uniformity_is_the_mean_over_pairs():
    load_config(ROOT / 'projects/msbreg/configs/byol_uniform_r18_in100_320e.py')
    q = torch.nn.functional.normalize(torch.randn(2, 6, 5, dtype=torch.float64), dim=2)
    pairs = [[math.exp(-2 * (a - b).square().sum()) for a in v for b in v if a is not b] for v in map(list, q)]
    expected = sum(math.log(sum(row) / len(row)) for row in pairs) / 2
    assert MODELS.build(dict(type='UniformityTerm'))(q).item() == pytest.approx(expected)


def toy(study: Study, folder: Path, tasks: list[str]) -> Path:
    """Write a scale at which the longest row trains for 6 epochs. Return the path of the scale."""
    full = scales.read_scale('in1k')
    longest = max(epochs(scales.resolve(row, full), full.images) for row in study.rows)
    scale = toy_scale(192, epochs=6 / longest, tasks=tasks)
    scale['replace']['recipes'] = dict(linear='linear_shapes_20e', finetune='finetune_shapes')
    (folder / 'toy.yaml').write_text(yaml.safe_dump(scale))
    return folder / 'toy.yaml'


def first_rows(path: Path, folder: Path) -> Path:
    """Write a copy of a study with only some of the rows, and return its path.

    The copy has the first three rows, one row that uses the weights of another row, the rows of `study.look`, and all
    rows to which these rows refer. A study with a design keeps all rows.
    """
    study, described = read_study(path), yaml.safe_load(path.read_text())
    described.pop('unscaled', None)
    if study.design:
        (folder / path.name).write_text(yaml.safe_dump(described, sort_keys=False))
        return folder / path.name
    chosen = [*study.rows[:3], *[row for row in study.rows if row.others][:1]]
    chosen_names, more = set(), {row.name for row in chosen} | {name for look in study.look for name in look.rows}
    while more:
        chosen_names |= more
        needed = [(row.against, *row.others.values()) for row in study.rows if row.name in chosen_names]
        more = {name for names in needed for name in names} - chosen_names - {None}
    above = {row.name: row.against for row in study.rows}
    rows = [dict(row, against=above[row['name']]) for row in described['rows'] if row['name'] in chosen_names]
    testable = {claim.name for claim in study.claims if chosen_names.issuperset(claim.test.rows)}
    claims = [claim for claim in described.get('claims', ()) if claim['name'] in testable]
    (folder / path.name).write_text(yaml.safe_dump({**described, 'rows': rows, 'claims': claims}))
    return folder / path.name


@pytest.mark.slow
@pytest.mark.parametrize('path', [path for path in STUDIES if path.stem != 'judge_example'], ids=lambda path: path.stem)
def test_every_study_runs_and_draws_its_figure(path, tmp_path, monkeypatch, run_tool):
    """The runs use synthetic images. Tasks of mmdet and mmseg are left out, because other tests cover these tasks."""
    if path.stem == 'byol_wide':
        pytest.skip('its rows differ in width, but the small scale gives all of them one width')
    if path.stem == 'release':
        pytest.skip('its checkpoints are downloaded; test_external.py runs it with stand-ins')
    tasks = list({task.partition('@')[0]: None for task in read_study(path).tasks['in1k'] if is_local(task)})
    taxonomy = tmp_path / 'data' / 'imagenet' / 'wordnet.is_a.txt'
    taxonomy.parent.mkdir(parents=True)
    taxonomy.write_text(''.join(f'{above} {name}\n' for above, names in TREE.items() for name in names))
    for count in (2, 10):
        labels = tmp_path / f'data/imagenet/huh/train_up_down_{count}.txt'
        labels.parent.mkdir(exist_ok=True)
        labels.write_text(''.join(f'{name} {index % count}\n' for index, name in enumerate(KINDS)))
    monkeypatch.chdir(tmp_path)
    study, scale = first_rows(path, tmp_path), toy(read_study(path), tmp_path, tasks)
    monkeypatch.setattr(run_study, 'execute', complete)
    run_tool('tools/study.py', study, '--scale', scale, '--seeds', 0, '--out', tmp_path / 'out')
    record = json.loads((tmp_path / 'out' / 'study.json').read_text())
    page = (tmp_path / 'out' / 'page.html').read_text()
    assert {metric['key'] for metric in record['metrics']} == set(tasks)
    measured = [(place, column.label) for place, column in enumerate(columns(record)) if column.kind == 'measured']
    cells = [(line.row, line.cells[place]) for line in table_lines(record) for place, _ in measured]
    assert all(cell.value in page and (cell.numbers or row['untrained']) for row, cell in cells)
    if read_study(path).figure.kind == 'lines':
        assert all(f'{label}, measured' in page for _, label in measured)
    assert all(escape(row['name']) in page for row in record['rows'])
    looks = [list(tmp_path.glob(f'out/{look.instrument}_{n}/*.html')) for n, look in enumerate(read_study(path).look)]
    assert all(looks)
    if path.stem == 'msbreg_uniformity':
        assert 'BYOL, as published' in looks[0][0].read_text()

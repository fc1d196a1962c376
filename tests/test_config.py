"""Configs: neighboring methods differ in one factor only, and configs written as YAML or JSON keep all values."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.cli.factors import table
from mmairl.config import MOVED_MODULES, load_config, python_text, same_config, write_config
from mmairl.engine.checks import check_config
from mmairl.engine.curves import read_run_config
from mmairl.errors import UserError
from mmairl.io import write_text
from mmairl.study.factors import changed, factors_of

CONFIGS = Path(__file__).parent.parent / 'configs'

# For each pair of configs: the factor that differs, and the config keys that may differ.
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
def test_neighbors_differ_in_one_factor(pair):
    factor, allowed = RUNGS[pair]
    one, two = map(load, pair)
    keys = changed(one, two)
    assert keys, 'the two configs are equal'
    strays = [key for key in keys if not any(key == prefix or key.startswith(f'{prefix}.') for prefix in allowed)]
    assert not strays, f'{pair[1]} changes more than its {factor}: {strays}'
    before, after = factors_of(one), factors_of(two)
    # BYOL's loss uses no negatives, so the loss and the queue count as one factor.
    differing = {name for name in before if before[name] != after[name]} - {'negatives'}
    # In two pairs, the projector also differs: in its widths in one pair, and in its last bias in the other.
    assert differing - ({'projector'} if pair in PROJECTOR_TOO else set()) == {factor}
    assert (pair in PROJECTOR_TOO) == ('projector' in differing)


def test_table_of_the_docs_follows_the_configs():
    page = CONFIGS.parent / 'docs' / 'explanation' / 'frameworks.md'
    assert page.read_text().endswith(table()), (
        'the table is outdated; put the output of python tools/factors.py at the end of the page'
    )


def test_factors_equal_the_papers_table():
    """The expected factors were copied from the paper's table by hand."""
    factors_by_name = {name: factors_of(load(name)) for name in ('mocov2', *(pair[1] for pair in RUNGS))}
    for name, factors in factors_by_name.items():
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


def config(folder: Path, values: dict | str, name: str = 'run.yaml') -> Path:
    (folder / name).write_text(values if isinstance(values, str) else json.dumps(values))
    return folder / name


def test_yaml_config_has_bases_and_project_parts(tmp_path):
    config(tmp_path, dict(model=dict(a=1, b=dict(c=2)), train_cfg=dict(d=1)), 'one.json')
    config(tmp_path, dict(fast=dict(e=1)), 'two.yml')
    text = 'model: {a: 1e-3, b: {_delete_: true, f: 4}}\nfast: {e: "1e-3"}'
    cfg = load_config(config(tmp_path, f'_base_: [one.json, two.yml]\n{text}'))
    assert cfg.to_dict() == dict(model=dict(a=0.001, b=dict(f=4)), train_cfg=dict(d=1), fast=dict(e='1e-3'))
    base = 'mmairl::projects/msbreg/configs/msbreg_k4_r50_300e.py'
    cfg = load_config(config(tmp_path, dict(_base_=base, total_batch_size=8)))
    assert cfg.model.head.type == 'RegularisedHead' and cfg.total_batch_size == 8


@pytest.mark.parametrize('name', ['byol_lars_r50_200e.py', 'demo/mocov2plus_shapes.py', 'evaluation/voc2007_r50.py'])
def test_written_config_equals_the_original(tmp_path, name):
    cfg = load_config(CONFIGS / name)
    cfg.dump(tmp_path / 'theirs.yaml')
    assert '!!python/tuple' in (tmp_path / 'theirs.yaml').read_text()
    assert load_config(tmp_path / 'theirs.yaml').to_dict() == cfg.to_dict()
    cfg.spans = dict(one=(1, 2, (3, [4])), text='1e-3', small=1e-5, yes='yes', none=None)
    for file in ('run.yaml', 'run.json'):
        write_config(cfg, tmp_path / file)
        values = cfg.to_dict() if file == 'run.yaml' else json.loads(json.dumps(cfg.to_dict()))
        assert load_config(tmp_path / file).to_dict() == values


def test_unreadable_configs_raise(tmp_path):
    for value in (object(), Path('a'), {1, object()}):
        for name in ('run.yaml', 'run.json'):
            with pytest.raises(UserError, match='cannot store'):
                write_config(Config(dict(a=dict(b=value))), tmp_path / name)
    with pytest.raises(UserError, match='expected .yaml or .json'):
        write_config(Config(dict(a=1)), tmp_path / 'run.py')
    assert not list(tmp_path.iterdir())
    for text in ('a: [1', '- a', '1: 2', '\0', '_base_: gone.yaml', '_base_: run.yaml', 'a: ' + '[' * 5000):
        with pytest.raises(UserError, match='cannot be read') as caught:
            load_config(config(tmp_path, text))
        assert '\n' not in str(caught.value)
    with raises_code('not-a-training-config'):
        check_config(load_config(config(tmp_path, '')))
    with pytest.raises(UserError, match='a.pth.: unsupported config type'):
        load_config(config(tmp_path, '', 'a.pth'))
    with pytest.raises(UserError, match=r"r5_200e.py.: no such config; did you mean 'mocov2plus_r50_200e.py'\?"):
        load_config(tmp_path / 'mocov2plus_r5_200e.py')


@pytest.mark.parametrize('suffix', ['.py', '.yaml', '.json'])
def test_braces_of_a_written_config_stay(tmp_path, monkeypatch, suffix):
    monkeypatch.setenv('SECRET', 'value')
    names = [
        '{{ fileDirname }}',
        '{{$SECRET:x}}',
        '{{ _base_.a }}',
        '{{{{$SECRET:(',
        '\\{{$SECRET:x}}',
        'a {{ b }}\u2028c\n',
    ]
    values = dict(roots=[*names, '{{$SECRET:y', '}}'], by_name=dict.fromkeys(names, 1), quoted={"it's": 1, 'class': 2})
    cfg, path = Config(values), tmp_path / f'run{suffix}'
    if suffix == '.py':
        write_text(path, python_text(cfg))
    else:
        write_config(cfg, path)
    assert load_config(path).to_dict() == values


def test_python_text_keeps_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / 'start' / 'vis_data' / 'config.py'
    write_text(path, python_text(Config(dict(ends=[math.inf, -math.inf], loss=math.nan))))
    cfg = load_config(path)
    assert cfg.ends == read_run_config(tmp_path)['ends'] == [math.inf, -math.inf] and math.isnan(cfg.loss)


@pytest.mark.parametrize('old', MOVED_MODULES)
def test_moved_modules_are_found(old):
    assert importlib.util.find_spec(MOVED_MODULES[old])


def test_stored_config_imports_moved_modules(tmp_path):
    path = tmp_path / 'stored.yaml'
    path.write_text('custom_imports: {imports: [mmairl.hooks.checkpoint], allow_failed_imports: false}\n')
    assert load_config(path).custom_imports.imports == ['mmairl.engine.hooks.saving']


def test_stored_config_may_import_moved_modules():
    current = 'model: {type: DINOHead}\n'
    stored = 'custom_imports: {imports: [projects.more_methods.dino]}\n' + current
    outside = 'custom_imports: {imports: [mine]}\n' + current
    assert same_config(stored, current) and same_config(current, current)
    assert same_config(stored, current + 'assumptions: {crop: crops are resized bilinearly}\n')
    hooks = 'default_hooks: {queue: {type: QueueHook}, momentum: {type: MomentumHook}}\n'
    assert same_config(hooks, 'default_hooks: {momentum: {type: MomentumHook}}\n')
    assert not same_config(outside, current) and not same_config(stored, 'model: {type: SwAVHead}\n')
    assert not same_config('model: !!python/object/apply:os.getcwd []\n', current)


def test_yaml_config_of_many_aliases_ends(tmp_path):
    lines = ['a0: &a0 [x, x, x, x, x, x, x, x, x, x]']
    lines += [f'a{level}: &a{level} [{", ".join([f"*a{level - 1}"] * 10)}]' for level in range(1, 12)]
    (tmp_path / 'laughs.yaml').write_text('\n'.join(lines))
    with pytest.raises(UserError, match='too many values'):
        load_config(tmp_path / 'laughs.yaml')

"""Study rows whose checkpoints were trained outside mmairl are identified and compared by the factors that are stated.

`mmairl.compare` is tested, too.
"""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
import yaml
from harness.errors import raises_code
from mmengine.config import Config
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import resnet18, resnet50

import mmairl
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import home, load_config, write_config
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.identity import difference
from mmairl.io import read_json, write_json
from mmairl.study import run_study, worker
from mmairl.study.collect import collect, describe
from mmairl.study.external import (
    checkpoint_path,
    compare_stated,
    factor_form,
    facts_of,
    require_distinct_models,
    training_factors,
)
from mmairl.study.fairness import compare_configs, require_fair
from mmairl.study.model_identity import model_at
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.planner import plan_runs, prepare_runs
from mmairl.study.reuse import create_weights, origin
from mmairl.study.runs import Run
from mmairl.study.scale import read_scale, resolve
from mmairl.study.schema import Asked, RunResult, Trained, last_checkpoint
from mmairl.study.spec import Row, Study, read_study
from mmairl.study.statistics.paired_images import NO_DIFFERENCE

OURS = Row('ours', 'byol_r50_200e.py')


def lightning(path: Path, seed: int) -> Path:
    """Write a checkpoint with Lightning's keys."""
    torch.manual_seed(seed)
    weights = {f'backbone.{key}': value for key, value in resnet18().state_dict().items() if not key.startswith('fc.')}
    groups = [dict(lr=0.01, initial_lr=0.03, momentum=0.9, weight_decay=1e-4, params=[0])]
    beside = {'pytorch-lightning_version': '2.5.0', 'epoch': 99, 'global_step': 700, 'hyper_parameters': dict(tau=0.99)}
    torch.save(dict(beside, state_dict=weights, optimizer_states=[dict(state={}, param_groups=groups)]), path)
    return path


def row(folder: Path, stated: dict | None = None, **options) -> Row:
    if stated is not None:
        (folder / 'stated.yaml').write_text(yaml.safe_dump(stated))
        options['trained'] = str(folder / 'stated.yaml')
    return Row('theirs', 'byol_r50_200e.py', against='ours', weights={0: str(folder / 'a.ckpt')}, **options)


@pytest.fixture(scope='module')
def ours():
    return {'ours': load_config('mmairl::byol_r50_200e.py')}


def test_form_has_facts_of_checkpoint_and_base(tmp_path, ours):
    facts = facts_of(str(lightning(tmp_path / 'a.ckpt', 0)))
    optimizer = 'lr 0.03, decay 0.0001, momentum 0.9'
    assert facts == {'epochs': '100', 'steps': '700', 'Lightning': '2.5.0', 'optimizer': optimizer, 'tau': '0.99'}
    printed = factor_form(row(tmp_path), training_factors(ours['ours']))
    assert yaml.safe_load(printed).keys() == training_factors(ours['ours']).keys()
    assert 'epochs: 100  # 200' in printed and 'negatives:  # none' in printed
    evaluation = training_factors(load_config('mmairl::evaluation/folder_r50.py'))
    form = yaml.safe_load(factor_form(row(tmp_path, {'epochs': 90}), evaluation))
    assert form == {'epochs': 90, 'optimizer': optimizer}


def test_facts_cannot_add_lines_to_the_form(tmp_path):
    hostile = {'a\nseed: 1': 'b\noptimizer: SGD', 'c': '\x1b[31m'}
    torch.save({'hyper_parameters': hostile, 'state_dict': {}}, tmp_path / 'a.ckpt')
    facts = facts_of(str(tmp_path / 'a.ckpt'))
    assert facts == {'a\\nseed: 1': 'b\\noptimizer: SGD', 'c': '\\x1b[31m'}


def test_stated_factors_are_compared(tmp_path, ours):
    factors = training_factors(ours['ours'])
    assert compare_stated(row(tmp_path, factors), OURS, ours) == ([], [])
    differing, unknown = compare_stated(row(tmp_path, {'loss': 'InfoNCE', 'epochs': 200}), OURS, ours)
    assert differing == ['loss'] and set(unknown) == factors.keys() - {'loss', 'epochs'}
    with pytest.raises(UserError, match="'lose' is not a factor"):
        compare_stated(row(tmp_path, {'lose': 'InfoNCE'}), OURS, ours)


def test_missing_file_is_an_error(tmp_path):
    with raises_code('no-checkpoint'):
        checkpoint_path(Row('x', '', weights={0: str(tmp_path / 'c.ckpt')}), 0)


def test_hugging_face_folder_is_a_row(tmp_path):
    folder = tmp_path / 'model'
    folder.mkdir()
    save_file(resnet18().state_dict(), folder / 'model.safetensors')
    assert checkpoint_path(Row('x', '', weights={0: str(folder)}), 0) == str(folder / 'model.safetensors')


def test_plain_timm_file_fills_a_wrapped_row(tmp_path):
    cfg = Config(dict(model=dict(backbone=dict(type='mmpretrain.TIMMBackbone', model_name='tf_efficientnet_lite0'))))
    weights = load_backbone(cfg).state_dict()
    path = tmp_path / 'timm.pth'
    torch.save({name.removeprefix('timm_model.'): value for name, value in weights.items()}, path)
    folder = tmp_path / 'run'
    write_config(cfg, folder / 'asked' / 'config.yaml')
    request = Asked(0, external=str(path))
    create_weights(cfg, request, folder)
    loaded = read_backbone(last_checkpoint(folder), network=weights).weights
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    assert not difference(origin(request, folder), read_json(folder / 'trained.json', Trained).made)
    rows = [Row('x', '', weights={0: str(path), 1: str(last_checkpoint(folder))})]
    with raises_code('same-model'):
        require_distinct_models(rows, {'x': cfg})


def saved(folder: Path, weights: dict, kind: str) -> str:
    """Write the weights of a model in another tool's format or in another precision. Return the path."""
    path = folder / f'{kind}.{"safetensors" if kind == "safetensors" else "pth"}'
    if kind in ('torchvision', 'timm'):
        write_backbone(read_backbone(saved(folder, weights, 'plain')), path, kind)
    elif kind == 'safetensors':
        save_file(weights, path)
    elif kind == 'lightning':
        torch.save(dict(state_dict={f'backbone.{key}': value for key, value in weights.items()}), path)
    elif kind == 'no counters':
        torch.save({key: value for key, value in weights.items() if 'num_batches' not in key}, path)
    else:
        precision = getattr(torch, kind, torch.float32)
        torch.save({key: value.to(precision) for key, value in weights.items()}, path)
    return str(path)


SAME = ('torchvision', 'timm', 'safetensors', 'lightning', 'no counters', 'float32', 'float64')
HALF = ('float16', 'bfloat16')


@pytest.fixture(scope='module')
def plain(tmp_path_factory) -> tuple[str, dict]:
    """Return the file and the weights of a model after a forward pass in training mode."""
    torch.manual_seed(0)
    network = resnet18()
    network(torch.randn(4, 3, 64, 64))  # This changes batch-norm statistics and counters
    weights = {key: value for key, value in network.state_dict().items() if not key.startswith('fc.')}
    return saved(tmp_path_factory.mktemp('plain'), weights, 'plain'), weights


@pytest.mark.parametrize(
    ('kind', 'code'),
    [*((kind, 'same-model') for kind in SAME), *((kind, 'near-duplicate-model') for kind in HALF)],
)
def test_model_in_another_file_is_no_new_seed(tmp_path, plain, kind, code):
    path, weights = plain
    other = saved(tmp_path, weights, kind)
    for rows in (
        [Row('x', '', weights={0: path, 1: other})],
        [Row('x', '', weights={0: path}), Row('y', '', weights={0: other})],
    ):
        with raises_code(code):
            require_distinct_models(rows)


def test_models_of_other_seeds_are_distinct(tmp_path):
    kinds = ('float32', 'float16', 'bfloat16')
    paths = []
    for seed, kind in enumerate(kinds):
        torch.manual_seed(seed)
        paths.append(saved(tmp_path, resnet18().state_dict(), kind))
    (tmp_path / 'damaged.pth').write_bytes(b'damaged')
    paths += [str(tmp_path / name) for name in ('damaged.pth', 'absent.pth')]
    require_distinct_models([Row('x', '', weights=dict(enumerate(paths)))])


def test_half_precisions_of_one_model_are_near(tmp_path):
    torch.manual_seed(0)
    weights = resnet18().state_dict()
    half, bfloat = (model_at(saved(tmp_path, weights, kind)) for kind in ('float16', 'bfloat16'))
    assert half.weights != bfloat.weights and half.is_near(bfloat)
    weights['layer4.0.conv1.weight'] *= 1.01
    assert not half.is_near(model_at(saved(tmp_path, weights, 'other')))


def test_checkpoint_that_does_not_fit_is_an_error(tmp_path, ours):
    lightning(tmp_path / 'a.ckpt', 0)
    study = Study(title='t', rows=(OURS, row(tmp_path)))
    planned = study, {**ours, 'theirs': ours['ours']}, [0], ['knn'], tmp_path / 'out'
    with pytest.raises(UserError, match='a.ckpt: weights do not fit'):
        prepare_runs(*planned)
    torch.save(dict(optimizer_states=[dict(state={0: dict(sum=torch.ones(2))})]), tmp_path / 'a.ckpt')
    with pytest.raises(UserError, match='a.ckpt: .*it has no weights'):
        prepare_runs(*planned)
    assert not (tmp_path / 'out').exists()


def test_external_row_cannot_become_a_trained_one(tmp_path, ours):
    torch.save(resnet50().state_dict(), tmp_path / 'a.ckpt')
    how = ({**ours, 'theirs': ours['ours']}, [0], ['knn'], tmp_path)
    (_, run) = prepare_runs(Study(title='t', rows=(OURS, row(tmp_path))), *how)
    write_json(run.folder / 'trained.json', {})
    theirs = Row('theirs', 'byol_r50_200e.py', against='ours')
    with raises_code('other-config'):
        prepare_runs(Study(title='t', rows=(OURS, theirs)), *how)


def complete(runs: list[Run], jobs: int, devices: int, report: Callable[[Run, str], None]) -> None:
    """Complete runs in this process. New processes would have to import all packages again."""
    for run in runs:
        if not run.done:
            worker.complete_run(run.folder)
            report(run, 'done')


@pytest.mark.slow
def test_compare_measures_checkpoints_and_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(run_study, 'execute', complete)
    for part, count in (('train', 6), ('val', 4)):
        for colour in ('red', 'blue'):
            folder = tmp_path / 'images' / part / colour
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new('RGB', (40, 40), colour).save(folder / f'{index}.png')
    paths = [lightning(tmp_path / f'{seed}.ckpt', seed) for seed in range(4)]
    lines = []
    how = dict(data=tmp_path / 'images', tasks=['knn'], out=tmp_path / 'out', jobs=1, say=lines.append)
    judged = mmairl.compare({'a': paths[:2], 'b': paths[2:]}, **how)
    (compared,) = judged.record['comparisons'].values()
    assert f'(n = 2) 0.0 {compared[0]["verdict"]}' in judged._repr_html_()
    assert (
        judged.page.is_file()
        and '<td>100.0' in judged._repr_html_()
        and 'cannot be attributed to one factor' in str(judged)
    )
    assert not compared[0]['blocks'] and compared[0]['seeds'] == 2
    assert mmairl.compare({'a': paths[:2], 'b': paths[2:]}, **how).record['rows'] == judged.record['rows']
    assert lines[-1] == '5 of 5 runs are finished' and '| random initialisation | no training |' in str(judged)
    assert 'not run yet' not in str(mmairl.compare({'a': paths[:2], 'b': paths[2:3]}, **how))
    assert 'paired_images' not in judged.record
    single = mmairl.compare({'a': paths[:1], 'b': paths[2:3]}, **how)
    assert 'k-NN' in single.record['paired_images'][0] and NO_DIFFERENCE in str(single)
    assert 'two checkpoints, image by image' in single.page.read_text()
    lightning(paths[3], 9)
    mmairl.compare({'a': paths[:2], 'b': paths[2:]}, **how)
    assert any('b, seed 1 is measured again' in line for line in lines)
    torch.save(dict(optimizer=dict(state={})), tmp_path / 'bad.pth')
    written_at = (tmp_path / 'out' / 'configs' / 'a.yaml').stat().st_mtime_ns
    for networks, more, code in (
        ({'a': paths}, {}, 'too-few-networks'), (paths, {}, 'too-few-networks'),
        ({'a': paths[:2], 'b': [paths[2], tmp_path / 'bad.pth']}, {}, 'no-backbone'),
        ({'a': paths[:2], 'b': paths[2:]}, dict(tasks=['knnn']), 'unknown-task'),
    ):  # fmt: skip
        with raises_code(code):
            mmairl.compare(networks, **{**how, **more})
    assert (tmp_path / 'out' / 'configs' / 'a.yaml').stat().st_mtime_ns == written_at


def test_undeclared_stated_factor_is_an_error(tmp_path, ours, monkeypatch):
    lightning(tmp_path / 'a.ckpt', 0)
    theirs = row(tmp_path, {'library': 'x', 'student predictor': True}, declares=('library',))
    study, configs = Study(title='t', rows=(OURS, theirs)), {**ours, 'theirs': ours['ours']}
    runs = plan_runs(study, configs, [0], ['knn'], tmp_path)
    for run in runs:
        hidden = {'library': 'old'} if run.row.weights else {}
        result = RunResult(labels={'knn': 'k-NN'}, scores={'knn': 1.0}, hidden=hidden)
        write_json(run.folder / 'result.json', result)
    assert describe(runs[1], tmp_path)['hidden'] == {'library': 'x', 'student predictor': 'yes'}
    monkeypatch.setattr(Run, 'stale_reason', '')
    record = collect(study, configs, read_scale('demo'), runs, tmp_path)
    checks = {check['check']: check for check in record['fairness']['hidden']}
    assert checks['library']['values'] == {'ours': 'mmairl', 'theirs': 'x'} and not checks['epochs']['equal']
    assert checks['student predictor']['equal'] and {*chain(*record['assumptions'].values())} == {'ours'}
    text = write_study_page(record, tmp_path / 'page.html').read_text()
    assert f'Its author states its factors in {theirs.trained}' in text and f'<dd>{theirs.weights[0]}</dd>' in text
    study = Study(title='t', rows=(OURS, row(tmp_path, {'library': 'x'})))
    with pytest.raises(UserError, match=r"'theirs' differs from 'ours' in undeclared keys \(library\)"):
        require_fair(compare_configs(study, {**ours, 'theirs': ours['ours']}))


@pytest.mark.slow
def test_release_study_measures_files_in_its_format(tmp_path, monkeypatch, run_tool):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_study, 'execute', complete)
    scale = read_scale('half')
    study = read_study(home() / 'configs/studies/release.yaml')
    for place, released in enumerate(row for row in study.rows if row.weights):
        network = load_backbone(resolve(released, scale), seed=place)
        path = tmp_path / released.weights[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = {f'module.online_encoder.{key}': value for key, value in network.state_dict().items()}
        torch.save(dict(start_epoch=200, model=keys), path)
    run_tool('tools/study.py', home() / 'configs/studies/release.yaml', '--scale', 'half', '--tasks', 'norms')
    record = read_json(tmp_path / 'work_dirs/studies/release_half/study.json', dict)
    scores = {row['name']: [run.get('scores') for run in row['runs']] for row in record['rows'] if not row['untrained']}
    assert all(scores_of_row[0]['norms'] is not None for scores_of_row in scores.values())
    assert scores['BYOL, NormRescale by MoCo v2'][0] == pytest.approx(scores['MoCo v2'][0], abs=1e-4)
    assert [claim['verdict'] for claim in record['claims']] == ['not run']

"""tools/transfer.py: which tasks can run, what they start from, and that a table comes out of real runs that resume."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
import yaml
from PIL import Image
from transfer.test_detection_configs import VOC, _pretrain, small

from mmairl.errors import UserError
from mmairl.study.published import row, tables
from mmairl.transfer import drawn as generate
from mmairl.transfer import run as transfer_run
from mmairl.transfer.run import Place, last_scalars, prepare, run_task
from mmairl.transfer.tasks import TASKS, chosen, config_of, for_processes, lacking
from mmairl.weights.read import read_backbone

ROOT = Path(__file__).parents[2]


def test_every_task_has_its_configs_and_its_columns_are_the_papers():
    columns = {*row('mocov2plus_sgd'), *tables()['revisit_airl']['table3_normrescale']['columns']}
    for name, task in TASKS.items():
        for depth in task.depths if task.protocol is None else ():
            assert config_of(name, depth, ROOT / 'configs').is_file(), (name, depth)
        if name in ('linear', 'voc07', 'voc0712', 'coco_c4', 'coco_fpn', 'cityscapes'):
            assert set(task.scores) & columns, name
    with pytest.raises(UserError, match='not for ResNet-18'):
        config_of('coco_c4', 18, ROOT / 'configs')


def test_published_rows_are_as_printed():
    assert row('mocov2plus_lars')['voc07_ap50'] == 62.9 and row('byol_lars')['cityscapes_miou'] == 75.2
    with pytest.raises(UserError, match="no row 'mocov3'"):
        row('mocov3')
    assert (
        yaml.safe_load((ROOT / 'mmairl/study/published.yaml').read_text())['byol']['table4_dense']['voc07_ap50'] == 77.5
    )


def test_data_that_is_not_there_is_named_by_path(tmp_path):
    (tmp_path / 'data/VOCdevkit/VOC2007').mkdir(parents=True)
    assert lacking(TASKS['voc07'], tmp_path) == []
    assert lacking(TASKS['voc0712'], tmp_path) == [tmp_path / 'data/VOCdevkit/VOC2012']


def test_the_batch_is_shared_among_processes_or_refused():
    from mmairl.configs import load_config

    cfg = load_config(str(ROOT / 'configs/transfer/voc07_c4_r18_9k.py'))
    assert for_processes(cfg, 4).train_dataloader.batch_size == 4
    with pytest.raises(UserError, match='16 cannot be shared among 3'):
        for_processes(cfg, 3)


def test_any_projects_checkpoint_becomes_the_start_and_may_be_rescaled(tmp_path):
    torch.manual_seed(0)
    state = {k: v for k, v in torchvision.models.resnet18().state_dict().items() if not k.startswith('fc.')}
    grown = {k: v * 3 if v.is_floating_point() else v for k, v in state.items()}
    both = {f'module.encoder_q.{k}': v for k, v in state.items()} | {
        f'module.encoder_k.{k}': v for k, v in grown.items()
    }
    torch.save(dict(state_dict=both), tmp_path / 'moco.pth')
    torch.save(state, tmp_path / 'anchor.pth')
    moco, anchor = str(tmp_path / 'moco.pth'), str(tmp_path / 'anchor.pth')
    place = Place(ROOT, tmp_path, tmp_path / 'work', 1)
    start, depth = prepare(moco, 'teacher', None, place)
    assert depth == 18 and torch.equal(read_backbone(start).weights['conv1.weight'], grown['conv1.weight'])
    with pytest.raises(UserError, match='runs of another start'):
        prepare(moco, 'teacher', anchor, place)
    start, _ = prepare(moco, 'teacher', anchor, dataclasses.replace(place, work_dir=tmp_path / 'rescaled'))
    found = read_backbone(start)
    torch.testing.assert_close(found.weights['conv1.weight'], state['conv1.weight'])
    torch.testing.assert_close(found.weights['bn1.running_var'], grown['bn1.running_var'])
    assert found.origin['normrescale'] == anchor and found.origin['part'] == 'teacher'


@pytest.fixture
def tiny_voc(tmp_path, monkeypatch) -> tuple[Path, Place]:
    """A repository whose voc07 config is a small one, with generated data and a checkpoint trained a moment before."""
    checkpoint = _pretrain(tmp_path / 'pretrained')
    data = generate.write_voc(tmp_path / 'data/VOCdevkit', VOC)
    cfg = small('voc07_c4_r18_9k', data, checkpoint, tmp_path / 'unused')
    cfg.total_batch_size = 2
    (tmp_path / 'configs/transfer').mkdir(parents=True)
    cfg.dump(str(tmp_path / 'configs/transfer/tiny_r18.py'))
    (tmp_path / 'tools').symlink_to(ROOT / 'tools')
    monkeypatch.setitem(TASKS, 'voc07', dataclasses.replace(TASKS['voc07'], config='transfer/tiny_r{depth}'))
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    return checkpoint, Place(tmp_path, tmp_path, tmp_path / 'work', 1)


def test_a_detection_run_ends_in_the_papers_columns_and_is_not_run_again(tiny_voc, monkeypatch):
    checkpoint, place = tiny_voc
    start, depth = prepare(str(checkpoint), 'student', None, place)
    scores = run_task('voc07', start, depth, place)
    assert set(scores) == {'voc07_ap50', 'voc07_ap', 'voc07_ap75'} and all(
        0 <= score <= 100 for score in scores.values()
    )
    folder = place.work_dir / 'voc07'
    assert 'pascal_voc/AP50' in last_scalars(folder)
    monkeypatch.setattr(transfer_run, '_call', lambda *_: pytest.fail('ran again'))
    assert run_task('voc07', start, depth, place) == scores


def test_the_command_says_what_is_absent_and_where_it_looked(tmp_path):
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / 'a.pth')
    command = [
        sys.executable,
        ROOT / 'tools/transfer.py',
        tmp_path / 'a.pth',
        '--data',
        tmp_path,
        '--work-dir',
        tmp_path / 'w',
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert (
        done.returncode == 2 and f'voc07: left out, for {tmp_path}/data/VOCdevkit/VOC2007 is not there' in done.stdout
    )
    assert done.stderr.strip().splitlines()[-1].startswith('error: no task has its data')
    done = subprocess.run([*command, '--tasks', 'voc08'], capture_output=True, text=True)
    assert done.returncode == 2 and "no task 'voc08'" in done.stderr


def test_a_rescaled_network_is_not_measured_with_the_statistics_of_before():
    assert {'knn', 'linear', 'voc07'} <= set(chosen(None))
    assert 'voc07' in chosen(None, rescaled=True) and not {'knn', 'linear'} & set(chosen(None, rescaled=True))
    assert chosen('voc07', rescaled=True) == ['voc07'] and chosen('knn,voc07') == ['knn', 'voc07']
    with pytest.raises(UserError, match='knn would measure a rescaled network with the batch statistics of before'):
        chosen('knn,voc07', rescaled=True)


def test_scalars_of_a_resumed_run_are_read_over_its_restarts(tmp_path):
    for name, value in (('1', 0.1), ('2', 0.3)):
        (tmp_path / name / 'vis_data').mkdir(parents=True)
        (tmp_path / name / 'vis_data/scalars.json').write_text(
            json.dumps(dict(loss=2.0)) + '\n' + json.dumps({'AP': value}) + '\n'
        )
    assert last_scalars(tmp_path) == dict(loss=2.0, AP=0.3)


def test_protocols_on_imagenet_run_by_the_depth_of_the_checkpoint_and_end_in_the_table(tmp_path):
    generator = np.random.default_rng(0)
    for part, count in (('train', 50), ('val', 3)):
        for label in range(4):
            folder = tmp_path / 'data/imagenet' / part / f'n{label}'
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(generator.normal(60 * label, 15, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f'{index}.png')
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / 'a.pth')
    tool = [sys.executable, ROOT / 'tools/transfer.py', tmp_path / 'a.pth', '--tasks', 'knn,voc07', '--data', tmp_path]
    done = subprocess.run(
        tool, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, 'OMP_NUM_THREADS': '1'}
    )
    assert done.returncode == 0, done.stderr
    assert 'voc07: left out' in done.stdout
    lines = (tmp_path / 'work_dirs/transfer/a_student/table.csv').read_text().splitlines()
    table = {line.split(',')[0]: line.split(',')[1:] for line in lines[1:]}
    assert float(table['knn20'][0]) > 60 and table['knn20'][1] == ''  # chance is 25; the paper prints none
    assert table['voc07_ap50'] == ['', '77.1']

"""`mmairl transfer`: the choice of tasks, the weights from which they start, small runs, and the table of scores."""

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from harness.errors import raises_code
from mmengine.config import Config
from PIL import Image
from transfer.small_runs import small

from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config
from mmairl.engine.checkpoint import choose_start
from mmairl.transfer import execute as transfer_run
from mmairl.transfer.execute import Place, run_task, write_start
from mmairl.transfer.tasks import TASKS, chosen, lacking, task_config
from projects.papers.published import row, tables

ROOT = Path(__file__).parents[2]


def test_task_names_its_configs_columns_and_data(tmp_path):
    columns = {*row('mocov2plus_sgd'), *tables()['revisit_airl']['table3_normrescale']['columns']}
    for name, task in TASKS.items():
        assert all(task_config(name, depth).is_file() for depth in task.depths), name
        if name in ('linear', 'voc07', 'voc0712', 'coco_c4', 'coco_fpn', 'cityscapes'):
            assert set(task.scores) & columns, name
    with raises_code('no-config-of-depth'):
        task_config('coco_c4', 18)
    (tmp_path / 'data/VOCdevkit/VOC2007').mkdir(parents=True)
    assert lacking(TASKS['voc07'], tmp_path) == []
    assert lacking(TASKS['voc0712'], tmp_path) == [tmp_path / 'data/VOCdevkit/VOC2012']
    # A network that is rescaled by NormRescale has outdated batch-norm statistics, so protocols
    # that evaluate frozen features are left out.
    assert 'voc07' in chosen(None, rescaled=True) and not {'knn', 'linear'} & set(chosen(None, rescaled=True))
    with raises_code('rescaled-frozen'):
        chosen('knn,voc07', rescaled=True)
    with raises_code('repeated-column'):
        chosen('coco_fpn,coco_fpn_msbreg')
    with raises_code('unknown-task'):
        chosen('voc08')


def test_start_is_written_once_for_any_checkpoint(tmp_path):
    state = {k: v for k, v in torchvision.models.resnet18().state_dict().items() if not k.startswith('fc.')}
    grown = {k: v * 3 if v.is_floating_point() else v for k, v in state.items()}
    both = {f'module.encoder_{which}.{k}': v for which, part in (('q', state), ('k', grown)) for k, v in part.items()}
    torch.save(dict(state_dict=both), tmp_path / 'moco.pth')
    torch.save(state, tmp_path / 'anchor.pth')
    moco, anchor = str(tmp_path / 'moco.pth'), str(tmp_path / 'anchor.pth')
    place = Place(tmp_path, tmp_path / 'work', 1)
    start, depth = write_start(moco, 'teacher', None, place)
    assert depth == 18 and torch.equal(read_backbone(start).weights['conv1.weight'], grown['conv1.weight'])
    with raises_code('other-result', match='differs in weights'):
        write_start(moco, 'student', None, place)
    assert torch.equal(read_backbone(start).weights['conv1.weight'], grown['conv1.weight'])
    os.rename(moco, tmp_path / 'moved.pth')
    assert write_start(str(tmp_path / 'moved.pth'), 'teacher', None, place) == (start, 18)
    rescaled = dataclasses.replace(place, work_dir=tmp_path / 'rescaled')
    backbone = read_backbone(write_start(str(tmp_path / 'moved.pth'), 'teacher', anchor, rescaled)[0])
    torch.testing.assert_close(backbone.weights['conv1.weight'], state['conv1.weight'])
    torch.testing.assert_close(backbone.weights['bn1.running_var'], grown['bn1.running_var'])
    assert backbone.origin['normrescale'] == anchor and backbone.origin['part'] == 'teacher'


def test_detector_that_finds_nothing_scores_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer_run, '_measured', lambda *_: {'loss': 2.0})
    place = Place(tmp_path, tmp_path, 1)
    scores = run_task('scenes_det_plain', tmp_path / 'start.pth', 18, place)
    assert scores == {'scenes_plain_ap50': 0.0, 'scenes_plain_ap': 0.0}


@pytest.mark.slow
def test_detection_run_has_the_papers_columns(tmp_path, data, pretrained, monkeypatch):
    shutil.copytree(data / 'voc', root := tmp_path / 'data/VOCdevkit')
    cfg = small('voc07_c4_r18_9k', data, pretrained, tmp_path / 'unused')
    cfg.total_batch_size = 2
    cfg.default_hooks.checkpoint = load_config('mmairl::transfer/voc07_c4_r18_9k.py').default_hooks.checkpoint
    cfg.default_hooks.checkpoint.interval = 1
    (tmp_path / 'configs/transfer').mkdir(parents=True)
    cfg.dump(str(tmp_path / 'configs/transfer/tiny_r18.py'))
    monkeypatch.setattr('mmairl.transfer.tasks.home', lambda: tmp_path)
    monkeypatch.setitem(TASKS, 'voc07', dataclasses.replace(TASKS['voc07'], config='transfer/tiny_r{depth}'))
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    place = Place(tmp_path, tmp_path / 'work', 1)
    start, depth = write_start(str(pretrained), 'student', None, place)
    scores = run_task('voc07', start, depth, place)
    assert set(scores) == {'voc07_ap50', 'voc07_ap', 'voc07_ap75'} and all(0 <= one <= 100 for one in scores.values())
    run_start = choose_start(Config(dict(work_dir=str(place.work_dir / 'voc07'), resume=True)))
    assert run_start.resume and Path(run_start.path).name == 'iter_2.pth', (
        'the run cannot resume from its last checkpoint'
    )
    monkeypatch.setattr(transfer_run, '_run', lambda *_: pytest.fail('the finished task was run again'))
    assert run_task('voc07', start, depth, place) == scores
    next((root / 'VOC2007/Annotations').iterdir()).unlink()
    with raises_code('other-result', match='differs in data'):
        run_task('voc07', start, depth, place)


def test_imagenet_protocols_take_depth_from_checkpoint(tmp_path, monkeypatch, capfd, run_tool):
    generator = np.random.default_rng(0)
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / 'a.pth')
    for part, count in (('train', 50), ('val', 3)):
        for label in range(4):
            folder = tmp_path / 'data/imagenet' / part / f'n{label}'
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(generator.normal(60 * label, 15, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f'{index}.png')

    def in_this_process(folder: Path, processes: int) -> None:
        monkeypatch.setattr(sys, 'argv', ['run.py', str(folder)])
        transfer_run.main()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transfer_run, '_run', in_this_process)
    run_tool('tools/transfer.py', 'a.pth', '--tasks', 'knn,voc07', '--data', tmp_path)
    assert f'voc07: skipped, because {tmp_path}/data/VOCdevkit/VOC2007 is missing' in capfd.readouterr().out
    lines = (tmp_path / f'work_dirs/transfer/{tmp_path.name}_a_student/table.csv').read_text().splitlines()
    table = {line.split(',')[0]: line.split(',')[1:] for line in lines[1:]}
    # Chance accuracy is 25 percent. The papers state no accuracy for this k-NN.
    assert float(table['knn20'][0]) > 60 and table['knn20'][1] == ''
    assert table['voc07_ap50'] == ['', '77.1']

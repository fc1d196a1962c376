"""`mmairl transfer` chooses tasks, writes the weights from which they start, and reads their scores."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from harness.errors import raises_code

from mmairl.checkpoints.read import read_backbone
from mmairl.cli.command import value_of
from mmairl.transfer import execute
from mmairl.transfer.execute import Place, run_task, write_start
from mmairl.transfer.tasks import TASKS, chosen, lacking, task_config


def test_tasks_have_configs_and_data(tmp_path):
    for name, task in TASKS.items():
        assert all(task_config(name, depth).is_file() for depth in task.depths), name
    (tmp_path / 'data/VOCdevkit/VOC2007').mkdir(parents=True)
    assert lacking(TASKS['voc07'], tmp_path) == []
    assert lacking(TASKS['voc0712'], tmp_path) == [tmp_path / 'data/VOCdevkit/VOC2012']
    assert 'voc07' in chosen(None, rescaled=True) and not {'knn', 'linear'} & set(
        chosen(None, rescaled=True)
    )


WRONG = [
    ('no-config-of-depth', lambda: task_config('coco_c4', 18)),
    ('rescaled-frozen', lambda: chosen('knn,voc07', rescaled=True)),
    ('repeated-column', lambda: chosen('coco_fpn,coco_fpn_msbreg')),
    ('unknown-task', lambda: chosen('voc08')),
]


@pytest.mark.parametrize('code, call', WRONG)
def test_wrong_tasks_are_one_error(code, call):
    with raises_code(code):
        call()


def test_start_is_written_once(tmp_path, pretrained):
    path = pretrained(18)
    state = torch.load(path, weights_only=True)['state_dict']
    grown = {key: 3 * value if value.is_floating_point() else value for key, value in state.items()}
    torch.save(dict(state_dict=grown), tmp_path / 'lars.pth')
    place = Place(tmp_path, tmp_path / 'work', 1)
    start, depth = write_start(str(path), 'student', None, place)
    assert depth == 18 and write_start(str(path), 'student', None, place) == (start, 18)
    with raises_code('other-weights'):
        write_start(str(tmp_path / 'lars.pth'), 'student', None, place)
    rescaled = Place(tmp_path, tmp_path / 'rescaled', 1)
    start, _ = write_start(str(tmp_path / 'lars.pth'), 'student', str(path), rescaled)
    torch.testing.assert_close(
        read_backbone(start).weights['conv1.weight'], state['backbone.conv1.weight']
    )


@pytest.mark.parametrize('gpus', [1, 2])
def test_task_runs_in_the_folder_of_its_data(tmp_path, pretrained, monkeypatch, gpus):
    calls = []

    class Process:
        def __init__(self, command, env, cwd):
            calls.append((list(map(str, command)), cwd))
            folder = Path(command[command.index('--work-dir') + 1]) / '20260101_000000/vis_data'
            folder.mkdir(parents=True)
            scores = {f'pascal_voc/{name}': 0.5 for name in ('AP50', 'AP75', 'mAP')}
            (folder / 'scalars.json').write_text(json.dumps({'step': 1, **scores}) + '\n')

        def wait(self):
            return 0

    monkeypatch.setattr(execute, 'start', Process)
    monkeypatch.setattr(execute, 'stop', lambda processes: None)
    # The path of the weights may contain spaces and commas.
    place = Place(tmp_path, tmp_path / 'my work, two', gpus)
    start, depth = write_start(str(pretrained(18)), 'student', None, place)
    for _ in range(2):
        assert run_task('voc07', start, depth, place) == dict(
            voc07_ap50=50.0, voc07_ap=50.0, voc07_ap75=50.0
        )
    ((command, folder),) = calls
    assert folder == tmp_path and ('--nproc-per-node=2' in command) == (gpus == 2)
    options = dict(word.split('=', 1) for word in command if '=' in word)
    for part in ('backbone', 'roi_head.shared_head'):
        assert value_of(options[f'model.{part}.init_cfg.checkpoint']) == str(start)


def test_missing_data_is_an_error(tmp_path, pretrained, run_tool):
    with pytest.raises(SystemExit):
        run_tool('tools/transfer.py', pretrained(18), '--tasks', 'voc07', '--data', tmp_path)


@pytest.mark.slow
def test_scenes_need_no_data(tmp_path, pretrained, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    place = Place(tmp_path, tmp_path / 'work', 1)
    start, depth = write_start(str(pretrained(18)), 'student', None, place)
    scores = run_task('scenes_det', start, depth, place)
    assert all(0 <= value <= 100 for value in scores.values()) and len(scores) == 2
    shutil.rmtree(tmp_path / 'cache')
    assert run_task('scenes_det', start, depth, place) == scores

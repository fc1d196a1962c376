"""Test that boxes match masks in drawn scenes, and that a narrow ResNet runs detection and segmentation on them."""

import dataclasses
import filecmp
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from mmairl.config import load_config
from mmairl.data.shapes import KINDS
from mmairl.errors import UserError
from mmairl.registry import MODELS
from mmairl.transfer import execute as transfer_run
from mmairl.transfer.execute import Place, run_task, tune_task, write_start
from mmairl.transfer.tasks import TASKS, lacking, task_config
from projects.normrescale import scenes


def test_boxes_enclose_masks_and_scenes_repeat(tmp_path):
    counts = dict(train=6, test=3)
    folder, repeated = (scenes.write(tmp_path / name, counts) for name in ('one', 'again'))
    names = [str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()]
    assert (
        filecmp.cmpfiles(folder, repeated, names, shallow=False)[0] == names
        and len(names) == 2 * 9 + 2
    )
    for split in counts:
        content = json.loads((folder / f'annotations/{split}.json').read_text())
        assert {one['id']: one['name'] for one in content['categories']} == dict(
            enumerate(KINDS, 1)
        )
        for image in content['images']:
            mask = np.array(Image.open(folder / 'masks' / split / image['file_name']))
            assert mask.shape == (image['height'], image['width'])
            assert Image.open(folder / split / image['file_name']).size == mask.shape[::-1]
            things = [one for one in content['annotations'] if one['image_id'] == image['id']]
            assert 1 <= len(things) <= 5 and sum(one['area'] for one in things) == (mask > 0).sum()
            for one in things:
                left, top, wide, high = one['bbox']
                inside = mask[top : top + high, left : left + wide] == one['category_id']
                assert inside.sum() >= one['area'] and all(inside[edge].any() for edge in (0, -1))
                assert all(inside[:, edge].any() for edge in (0, -1))


def test_configs_name_the_kinds_of_scenes(tmp_path):
    for name, rate in (('scenes_det', 0.02), ('scenes_det_plain', 0.01), ('scenes_seg', 0.02)):
        cfg = load_config(str(task_config(name, 34)))
        assert tuple(cfg.kinds) == tuple(KINDS) and cfg.labels == ('background', *KINDS)
        assert cfg.optim_wrapper.optimizer.lr == rate
        assert cfg.custom_hooks[0].type == 'mmairl.PreciseBNHook'
        assert not lacking(TASKS[name], tmp_path)
    with pytest.raises(UserError, match='coco_c4 has no config for this depth .*ResNet-18'):
        task_config('coco_c4', 18)


@pytest.mark.slow
def test_narrow_resnet_runs_both_tasks(tmp_path, monkeypatch):
    """Tune and run detection and segmentation with a ResNet-18 of base width 16. A diverging rate must not stop the tuning."""
    backbone = MODELS.build(
        dict(type='mmpretrain.ResNet', depth=18, stem_channels=16, base_channels=16)
    )
    weights = {f'backbone.{key}': value for key, value in backbone.state_dict().items()}
    torch.save(dict(meta={}, state_dict=weights), tmp_path / 'narrow.pth')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(scenes, 'COUNTS', dict(train=8, test=4, half_0=2, half_1=3))
    monkeypatch.setattr('mmairl.transfer.tasks.home', lambda: tmp_path)

    def in_this_process(folder, processes):
        monkeypatch.setattr(sys, 'argv', ['run.py', str(folder)])
        transfer_run.main()

    monkeypatch.setattr(transfer_run, '_run', in_this_process)
    place = Place(tmp_path, tmp_path / 'work', 1)
    start, depth = write_start(str(tmp_path / 'narrow.pth'), 'student', None, place)
    (tmp_path / 'configs').mkdir()
    for name in ('scenes_det', 'scenes_det_plain', 'scenes_seg'):
        cfg = load_config(f'mmairl::transfer/{name}.py')
        cfg.train_cfg.update(max_iters=2, val_interval=2)
        cfg.custom_hooks[0].batches = 1
        cfg.dump(str(tmp_path / f'configs/{name}.py'))
        monkeypatch.setitem(TASKS, name, dataclasses.replace(TASKS[name], config=name))
        rates = [{}, {'optim_wrapper.optimizer.lr': 1e30}]  # the second rate diverges
        best, record = tune_task(name, start, depth, place, rates)
        assert record['halves'].keys() == {'trial_0', 'trial_1'} and record['trials'] == rates
        assert all(
            len(pair) == 2 and all(0 <= one <= 100 for one in pair)
            for pair in record['halves'].values()
        )
        assert best == rates[int(record['chosen'][-1])] and record['held_out'][
            record['chosen']
        ] == max(record['held_out'].values())
        scores = run_task(name, start, depth, place, best)
        assert set(scores) == set(TASKS[name].scores) and all(
            0 <= one <= 100 for one in scores.values()
        )

"""Every protocol by two processes is the protocol by one, through the command that users type."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from mmairl.configs import load_config
from mmairl.evaluation.backbone import load_backbone

ROOT = Path(__file__).parents[2]
RECIPE = """
_base_ = '{recipe}'
train_view = [dict(type='Resize', size=24), dict(type='CenterCrop', size=24)]  # nothing at random
total_batch_size = 20
train_cfg = dict(max_epochs=2)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=2, convert_to_iter_based=True, eta_min=0.0)]
randomness = dict(seed=0)
"""


@pytest.fixture(scope='module')
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('files')
    base = ROOT / 'configs/evaluation/shapes_r18.py'
    (folder / 'tiny.py').write_text(
        f"_base_ = '{base}'\n"
        'evaluation = dict(train=dict(count=101, size=24), test=dict(count=51, size=24), batch_size=16)\n'
    )
    (folder / 'recipe.py').write_text(RECIPE.format(recipe=ROOT / 'configs/_base_/recipes/linear_shapes_20e.py'))
    backbone = load_backbone(load_config(str(folder / 'tiny.py')), None, seed=3)
    torch.save(dict(state_dict={f'backbone.{k}': v for k, v in backbone.state_dict().items()}), folder / 'start.pth')
    return folder


def evaluate(files: Path, processes: int, protocol: str, *options: str) -> dict:
    out = files / f'{protocol}{processes}.json'
    done = subprocess.run(
        [
            'bash',
            ROOT / 'tools/dist_evaluate.sh',
            str(processes),
            protocol,
            files / 'tiny.py',
            files / 'start.pth',
            '--out',
            out,
            '--no-cache',
            *options,
        ],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': os.sys.executable},
        cwd=files,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(out.read_text())['scores']


@pytest.mark.parametrize(
    'protocol, options',
    [('knn', ['--k', '5', '20']), ('logreg', []), ('linear', ['--recipe', '{files}/recipe.py', '--workers', '0'])],
)
def test_two_processes_score_as_one(files, protocol, options):
    options = [option.format(files=files) for option in options]
    one, two = (evaluate(files, processes, protocol, *options) for processes in (1, 2))
    assert one.keys() == two.keys() and max(one.values()) > 0
    for name, score in one.items():
        assert two[name] == pytest.approx(score, abs=1e-3), name


def test_an_error_of_one_process_ends_all_with_its_sentence(files):
    (files / 'cut.pth').write_bytes((files / 'start.pth').read_bytes()[:5000])
    done = subprocess.run(
        ['bash', ROOT / 'tools/dist_evaluate.sh', '2', 'knn', files / 'tiny.py', files / 'cut.pth'],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHON': os.sys.executable},
        cwd=files,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0 and 'cut.pth is truncated or damaged' in done.stderr

"""Every built-in study is planned at the scale demo."""

import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import yaml

from mmairl.errors import UserError
from mmairl.registry import DATASETS
from mmairl.study.commands import prepare_study
from mmairl.study.runs import plan_runs

SMALL_SCALES = ('demo', 'half', 'quarter', 'vit_tiny')
STUDIES = sorted(Path(__file__).parents[2].glob('configs/studies/[!_]*.yaml'))
ERRORS = {'release': 'no-checkpoint'}  # It evaluates files that each user must download.


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_study_plans_at_demo(path, tmp_path):
    began = time.process_time()
    try:
        prepared = prepare_study(path, 'demo', out=tmp_path)
    except UserError as error:
        assert error.code == ERRORS[path.stem]
        return
    runs = plan_runs(prepared)
    assert path.stem not in ERRORS and len(runs) > len(prepared.study.rows)
    assert len({run.folder for run in runs}) == len(runs)
    assert time.process_time() - began < 3  # 0.1 to 1.4 s on an idle core


def test_scale_freezes_prototypes_longer(tmp_path):
    study = next(path for path in STUDIES if path.stem == 'dino_to_dinov2')
    configs = prepare_study(study, 'vit_tiny', out=tmp_path).configs
    until = [
        {place: schedule['until'] for place, schedule in cfg.custom_hooks[0]['values'].items()}
        for cfg in list(configs.values())[:6]
    ]
    warm_up = {'head.key_temperature': 30 / 800, 'projector.frozen': 1.0}
    assert until == [warm_up] * 2 + [warm_up | {'patch_projector.frozen': 1.0}] * 4


@pytest.mark.parametrize('scale', SMALL_SCALES)
def test_scale_keeps_the_checkpoints_that_rows_use(tmp_path, scale):
    study = next(path for path in STUDIES if path.stem == 'intermediate')
    prepared = prepare_study(study, scale, out=tmp_path)
    for source in filter(None, (row.source for row in prepared.study.rows)):
        cfg = prepared.configs[source.row]
        epoch = round(cfg.train_cfg.max_epochs * Fraction(source.at))
        assert epoch % cfg.default_hooks.checkpoint.interval == 0


@pytest.mark.parametrize('name', SMALL_SCALES)
def test_images_of_a_scale_are_gray(name):
    path = STUDIES[0].parent / f'_scales/{name}.yaml'
    scale = yaml.safe_load(path.read_text())
    evaluation = scale['merge']['evaluation']
    for cfg in (scale['data'], evaluation['train'], evaluation['test']):
        image = DATASETS.build({**cfg, 'count': 2}).raw(0)
        assert torch.equal(image[0], image[1]) and torch.equal(image[0], image[2])
        assert image.float().std() > 0

"""A few protocols, one after the other, by however many processes there are: measuring.py FOLDER NAME."""

import os
import sys
from pathlib import Path

import pytest
from mmengine.dist import is_main_process

from mmairl.configs import load_config
from mmairl.engine.launch import register
from mmairl.errors import UserError, stop_processes
from mmairl.evaluation.protocol import Settings, evaluate
from mmairl.files import write_json


def measure(folder: Path, name: str) -> dict[str, float]:
    launcher, cfg, scores = 'pytorch' if 'RANK' in os.environ else 'none', load_config(str(folder / 'tiny.py')), {}
    for protocol, options in (
        ('knn', dict(ks=(5, 20))),
        ('logreg', {}),
        ('linear', dict(recipe=str(folder / 'recipe.py'), work_dir=folder / name)),
    ):
        settings = Settings(launcher=launcher, **options)
        scores |= evaluate(cfg, protocol, folder / 'start.pth', settings=settings).scores
    with pytest.raises(UserError, match='holds another result'):  # the main process's error is every process's
        evaluate(cfg, 'finetune', folder / 'start.pth', settings=settings)
    return scores


if __name__ == '__main__':
    register()
    found = measure(Path(sys.argv[1]), sys.argv[2])
    if is_main_process():
        write_json(Path(sys.argv[1]) / f'{sys.argv[2]}.json', found)
    stop_processes()

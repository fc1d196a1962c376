"""Untrusted checkpoints, images, features, results and runs are data.

None of mmairl's readers runs code from them, and neither do the readers of OpenMMLab that a run calls. In addition,
rules of Ruff search the source for unsafe calls.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import mmengine
import numpy as np
import pytest
import torch
from mmengine.runner import CheckpointLoader
from torchvision.datasets import CIFAR10

from mmairl.checkpoints import released
from mmairl.cli import study
from mmairl.config import load_config
from mmairl.data.decode import UnreadableImage, decode_bytes
from mmairl.data.public import TorchvisionArrays
from mmairl.engine.checkpoint import load_checkpoint, trust_mmengine_checkpoints
from mmairl.engine.curves import read_run_config
from mmairl.errors import UserError
from mmairl.evaluation.feature_store import read_rows
from mmairl.report.compare_page import write_compare_page
from mmairl.report.evaluation_page import write_evaluation_page
from mmairl.report.health_page import write_health_page
from mmairl.study.spec import read_study


class Canary:
    """An object whose pickle is a call that creates a folder. If the folder exists, a reader has executed code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


LADDER = Path(__file__).parents[1] / 'configs/studies/ladder.yaml'


@pytest.fixture
def canary(tmp_path) -> Path:
    return tmp_path / 'canary'


def sentence(reader: Callable[[], object], canary: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        reader()
    assert '\n' not in str(caught.value) and not canary.exists()


@pytest.mark.parametrize('name', ['a.pth', 'a.pkl', 'a.pth.tar', 'a'])
def test_pickle_with_any_suffix_runs_nothing(tmp_path, canary, name):
    path = tmp_path / name
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(dict(model=dict(a=Canary(canary))), protocol))
        sentence(lambda: load_checkpoint(path), canary, r'would run \w+\.mkdir|not a checkpoint')
    for zipped in (True, False):
        torch.save(dict(state_dict={}, a=Canary(canary)), path, _use_new_zipfile_serialization=zipped)
        sentence(lambda: load_checkpoint(path), canary, r'would run \w+\.mkdir|not a checkpoint|expected a dictionary')
    torch.load(path, weights_only=False)
    assert canary.exists(), 'the unsafe torch.load did not run the code of the file, so this test shows nothing'


def test_platform_loads_files_and_urls_safely(tmp_path, canary, monkeypatch):
    hostile, plain = tmp_path / 'a.pth', tmp_path / 'plain.pth'
    torch.save(dict(state_dict={}, a=Canary(canary)), hostile)
    torch.save(dict(state_dict=dict(a=torch.ones(2))), plain)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    trust_mmengine_checkpoints()
    (tmp_path / 'hub/checkpoints').mkdir(parents=True)
    monkeypatch.setattr(released, '_download', lambda url, file, *_: shutil.copy(tmp_path / Path(url).name, file))
    for source in (hostile, plain):
        for name in (str(source), f'https://example.org/models/{source.name}', f'http://example.org/{source.name}'):
            if source == hostile:
                sentence(lambda name=name: CheckpointLoader.load_checkpoint(name), canary, 'would run')
            else:
                assert CheckpointLoader.load_checkpoint(name)['state_dict']['a'].tolist() == [1, 1]
    assert len(list((tmp_path / 'hub' / 'checkpoints').glob('plain-*.pth'))) == 2, (
        'the two URLs do not have a file each in the cache'
    )


@pytest.mark.parametrize('suffix', ['pkl', 'pickle', 'yaml', 'yml'])
def test_annotations_of_any_suffix_run_nothing(tmp_path, canary, suffix):
    trust_mmengine_checkpoints()
    path = tmp_path / f'annotations.{suffix}'
    path.write_bytes(pickle.dumps(Canary(canary)))
    if suffix[0] == 'y':
        path.write_text(f'a: !!python/object/apply:os.mkdir ["{canary}"]')
    with pytest.raises(Exception, match='mkdir'):
        mmengine.load(path)
    assert not canary.exists()
    plain = dict(a=[1, (2, 'b')], c=np.float64(1.5) if suffix[0] == 'p' else 1.5)
    mmengine.dump(plain, path)
    assert mmengine.load(path) == plain


def test_cifar_batches_and_features_run_nothing(tmp_path, canary):
    for published in CIFAR10.train_list + CIFAR10.test_list:
        path = tmp_path / CIFAR10.base_folder / published[0]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(dict(data=Canary(canary))))
    sentence(lambda: TorchvisionArrays('CIFAR10', tmp_path), canary, 'cannot be read')
    np.save(tmp_path / 'x.npy', np.array([Canary(canary)], dtype=object), allow_pickle=True)
    sentence(lambda: read_rows(tmp_path / 'x.npy', 1), canary, 'cannot be read .* remove the file')


def test_postscript_image_is_not_executed(tmp_path):
    """Pillow would pass PostScript to an interpreter, whatever the name of the file is."""
    path = tmp_path / 'a.jpg'
    path.write_text('%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(canary) (w) file closefile\n')
    with pytest.raises(UnreadableImage):
        decode_bytes(path.read_bytes())


def test_pages_of_an_untrusted_run_execute_nothing(tmp_path, canary, monkeypatch, capsys):
    """The configs of both runs, in Python and in YAML, are malicious. Pages and a study read these configs."""
    (tmp_path / 'evil.py').write_text(program := f'a = __import__("os").mkdir({str(canary)!r})\n')
    yaml = f'custom_imports: {{imports: [evil]}}\nmodel: !!python/object/apply:os.mkdir ["{canary}"]\n'
    monkeypatch.syspath_prepend(tmp_path)
    row = read_study(LADDER).rows[0]
    runs = [tmp_path / 'out/runs' / row.slug / f'seed_{seed}' for seed in range(2)]
    for run in runs:
        for folder in ('asked', '20260101_000000/vis_data'):
            (run / folder).mkdir(parents=True)
            for name, text in {'config.py': program, 'config.yaml': yaml}.items():
                (run / name).write_text(text)
                (run / folder / name).write_text(text)
        scalars = [dict(step=1, loss=1.0, health_spread_key=0.5)]
        (run / '20260101_000000/vis_data/scalars.json').write_text('\n'.join(map(json.dumps, scalars)))
        (run / 'result.json').write_text(json.dumps(dict(scores=dict(knn=50.0), config=str(run / 'config.py'))))
    write_compare_page(runs, tmp_path / 'compare.html')
    write_health_page(runs[0], tmp_path / 'health.html')
    write_evaluation_page(runs[0])
    words = [str(word) for word in (LADDER, '--scale', 'demo', '--out', tmp_path / 'out')]
    before = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    study.main([*words, '--status'])
    assert capsys.readouterr().out.endswith('2 stale\n')
    assert {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()} == before
    study.main([*words, '--collect'])
    assert 'changed later; run the study again (the config)' in capsys.readouterr().out
    assert not canary.exists()
    with pytest.raises(UserError):
        load_config(runs[0] / 'asked' / 'config.yaml')
    load_config(tmp_path / 'evil.py')
    assert canary.exists(), 'loading the config did not run its code, so this test shows nothing'


@pytest.mark.parametrize('text', ['a = (', '-' * 100_000 + '1', 'a = 1\0', '\xff'])
def test_invalid_config_in_a_checkpoint_raises(tmp_path, canary, text):
    (folder := tmp_path / '20260101_000000/vis_data').mkdir(parents=True)
    (folder / 'config.py').write_text(text, 'latin1')
    sentence(lambda: read_run_config(tmp_path), canary, 'not a config that a training run wrote|not text in UTF-8')

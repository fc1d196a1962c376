"""No reader runs code from a file: by the source of the package, by hostile files, and for what the platform reads itself."""

import pickle
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import mmengine
import numpy as np
import pytest
import torch
from code_readers import code_readers_below
from mmengine.runner import CheckpointLoader

from mmairl.data.images import UnreadableImage, decode_bytes
from mmairl.data.published import CIFAR10
from mmairl.engine import launch
from mmairl.engine.checkpoint import load_checkpoint, trust_mmengine_checkpoints
from mmairl.errors import UserError
from mmairl.evaluation.features import read_rows
from projects.faults.checkpoints import Canary

ROOT = Path(__file__).parent.parent

ALLOWED = {
    ('mmairl/__init__.py', 'importlib.import_module'): 'modules of ours by fixed names',
    ('mmairl/configs.py', 'mmengine.config.Config.fromfile'): "a Python config of the user, or a base that is mmairl's",
    ('mmairl/engine/loggers.py', 'importlib.import_module'): 'wandb and mlflow by fixed names',
    ('mmairl/engine/launch.py', 'mmengine.config.Config.fromfile'): "mmairl's own strategies by fixed names",
    ('mmairl/data_configs.py', 'importlib.import_module'): 'the registry of a scope out of a fixed list',
    ('mmairl/registry.py', 'importlib.import_module'): 'the packages of ours that registries name',
    ('projects/parity/compare.py', 'mmengine.config.Config.fromfile'): "mmairl's own views",
    ('projects/parity/compare.py', 'importlib.import_module'): 'files of installed libraries by fixed names',
    ('mmairl/study/factors.py', 'mmengine.config.Config.fromfile'): "mmairl's own configs by fixed names",
    ('mmairl/transfer/ops.py', 'importlib.import_module'): "mmcv's compiled ops by a fixed name",
    ('mmairl/transfer/tasks.py', '__import__'): 'mmdet and mmseg, to see whether they are there',
}
# The files of the platform with a call that can run code, by why a file of somebody else's never meets it.
PLATFORM = {
    'Python configs of the user and of installed packages, and names out of a fixed list': """
        mmengine/config/config.py mmengine/hub/hub.py mmdet/evaluation/functional/class_names.py
        mmseg/utils/class_names.py""",
    'not called': """
        mmengine/infer/infer.py mmengine/testing/compare.py mmpretrain/apis/model.py mmdet/apis/inference.py
        mmdet/testing/_utils.py mmdet/utils/misc.py mmseg/apis/inference.py mmseg/apis/remote_sense_inferencer.py""",
    'meta.config is taken out of what a run resumes from': """
        mmengine/runner/runner.py mmengine/runner/_flexible_runner.py""",
    'what the processes of a run give each other': """
        mmengine/dataset/base_dataset.py mmengine/dist/dist.py mmdet/utils/dist_utils.py
        mmdet/evaluation/metrics/base_video_metric.py""",
    'replaced by plain readers: weights/pickles, data_configs, load_url': """
        mmengine/fileio/handlers/pickle_handler.py mmengine/fileio/handlers/yaml_handler.py
        mmengine/utils/dl_utils/hub.py""",
    'closed to YAML and JSON': """
        mmcv/cnn/rfsearch/search.py mmcv/ops/nms.py mmpretrain/datasets/transforms/processing.py
        mmpretrain/models/multimodal/ram/ram.py mmdet/datasets/openimages.py mmseg/utils/io.py
        mmdet/models/detectors/kd_one_stage.py mmdet/models/task_modules/tracking/camera_motion_compensation.py""",
    'after the md5 of the file is the published one': 'mmpretrain/datasets/cifar.py mmpretrain/datasets/utils.py',
}
# Made plain by trust_mmengine_checkpoints, plain by default since torch 2.6, and guarded where names come from.
CLOSED = ('mmengine.load', 'mmengine.fileio.load', 'torch.load', 'importlib.import_module')


@pytest.fixture
def canary(tmp_path) -> Path:
    return tmp_path / 'canary'


def sentence(read: Callable[[], object], canary: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read()
    assert '\n' not in str(caught.value) and not canary.exists()


def test_the_source_has_no_reader_that_can_run_code_but_those_with_a_reason():
    found = {}
    for folder in ('mmairl', 'tools', 'projects'):
        found.update(code_readers_below(ROOT / folder))
    unknown = {f'{file}:{line} {name}' for (file, name), line in found.items() if (file, name) not in ALLOWED}
    assert not unknown and found.keys() == ALLOWED.keys()


@pytest.mark.parametrize(
    'package',
    ['mmengine', *(pytest.param(name, marks=pytest.mark.slow) for name in ('mmcv', 'mmpretrain', 'mmdet', 'mmseg'))],
)
def test_each_reader_of_the_platform_that_can_run_code_is_known(package):
    """Another version of the platform may bring another; then it is to be looked at, and closed or named above."""
    if not (spec := find_spec(package)):
        pytest.skip(f'{package} is not installed')
    found = {file for file, name in code_readers_below(Path(spec.origin).parent) if name not in CLOSED}
    named = {file for file in found if '/.mim/' not in file and 'gradio_demo' not in file}
    assert named <= set(' '.join(PLATFORM.values()).split())


@pytest.mark.parametrize('name', ['a.pth', 'a.pkl', 'a.pth.tar', 'a'])
def test_a_pickle_by_any_name_runs_nothing(tmp_path, canary, name):
    path = tmp_path / name
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(dict(model=dict(a=Canary(canary))), protocol))
        sentence(lambda: load_checkpoint(path), canary, 'refused|not a checkpoint')
    for zipped in (True, False):
        torch.save(dict(state_dict={}, a=Canary(canary)), path, _use_new_zipfile_serialization=zipped)
        sentence(
            lambda: load_checkpoint(path), canary, r'asks to run \w+\.mkdir while loading|not a (checkpoint|dictionary)'
        )
    torch.load(path, weights_only=False)
    assert canary.exists(), 'a careless reader falls for the file'


def test_the_platform_reads_files_and_addresses_by_the_same_rule(tmp_path, canary, monkeypatch):
    hostile, plain = tmp_path / 'a.pth', tmp_path / 'plain.pth'
    torch.save(dict(state_dict={}, a=Canary(canary)), hostile)
    torch.save(dict(state_dict=dict(a=torch.ones(2))), plain)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    trust_mmengine_checkpoints()
    monkeypatch.setattr(
        torch.hub, 'download_url_to_file', lambda url, file, **how: shutil.copy(tmp_path / Path(url).name, file)
    )
    for source in (hostile, plain):
        for name in (str(source), f'https://example.org/models/{source.name}', f'http://example.org/{source.name}'):
            if source == hostile:
                sentence(lambda name=name: CheckpointLoader.load_checkpoint(name), canary, 'asks to run')
            else:
                assert CheckpointLoader.load_checkpoint(name)['state_dict']['a'].tolist() == [1, 1]
    assert len(list((tmp_path / 'hub' / 'checkpoints').glob('plain-*.pth'))) == 2, 'an address, a file'


def test_the_config_text_in_a_checkpoint_is_not_run_when_a_run_resumes_from_it(toy_config, tmp_path, canary):
    cfg = toy_config(steps=1)
    launch.train(cfg)
    path = next(Path(cfg.work_dir).glob('*.pth'))
    checkpoint = load_checkpoint(path)
    checkpoint['meta']['config'] = f'__import__("os").mkdir({str(canary)!r})'
    torch.save(checkpoint, path)
    again = toy_config(steps=2, resume=True, load_from=str(path), **{'train_dataloader.dataset.count': 8})
    assert launch.train(again).iter == 2 and not canary.exists()


@pytest.mark.parametrize('suffix', ['pkl', 'pickle', 'yaml', 'yml'])
def test_annotations_that_the_platform_loads_by_their_suffix_run_nothing(tmp_path, canary, suffix):
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


def test_batches_of_cifar_and_stored_features_run_nothing(tmp_path, canary):
    for published in CIFAR10.published.train_list + CIFAR10.published.test_list:
        path = tmp_path / CIFAR10.published.base_folder / published[0]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(dict(data=Canary(canary))))
    sentence(lambda: CIFAR10(tmp_path), canary, 'unchanged by their md5')
    np.save(tmp_path / 'x.npy', np.array([Canary(canary)], dtype=object), allow_pickle=True)
    sentence(lambda: read_rows(tmp_path / 'x.npy', 1), canary, 'cannot be read .* remove the file')


def test_an_image_that_is_a_program_is_no_image(tmp_path):
    """Pillow hands PostScript to an interpreter, whatever the name of the file."""
    path = tmp_path / 'a.jpg'
    path.write_text('%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(canary) (w) file closefile\n')
    with pytest.raises(UnreadableImage):
        decode_bytes(path.read_bytes())

"""Checkpoints load in torch, mmengine, mmdet and mmseg, in processes that do not import mmairl."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import toy
from mmengine.hooks import EmptyCacheHook

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checkpoint import consolidate, load_checkpoint

ROOT = Path(__file__).parents[2]
WRITERS = ['exact hook', "mmengine's hook", 'normrescale', 'consolidate']

LOAD = """
import sys
import torch
from mmengine.runner import load_checkpoint
from torchvision.models import resnet18
path, weights = sys.argv[1:3]
loaded = torch.load(path, weights_only=True)
expected = torch.load(weights, weights_only=True)
assert loaded.get('message_hub', {}).get('log_scalars', {}) == {}
network = torch.nn.Module()
network.backbone = resnet18()
network.backbone.fc = torch.nn.Identity()
load_checkpoint(network, path)
state = network.backbone.state_dict()
assert state.keys() == expected.keys()
assert all(torch.equal(state[key], value) for key, value in expected.items())
assert not any(name.split('.')[0] == 'mmairl' for name in sys.modules)
print('loaded', len(state))
"""

BUILD = """
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
import torch


class Ops(ModuleType):
    '''mmcv-lite has no compiled operators; mmdet imports them, and none of them is called here.'''

    __spec__ = ModuleSpec('mmcv._ext', None)

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return lambda *arguments: 'not available'


try:
    import mmcv._ext
except ImportError:
    sys.modules['mmcv._ext'] = Ops('mmcv._ext')
kind, *files = sys.argv[1:]
registry = import_module(f'{kind}.registry')
import_module(f'{kind}.utils').register_all_modules()
for path, weights in zip(files[::2], files[1::2]):
    init = dict(type='Pretrained', checkpoint=path, prefix='backbone.')
    backbone = registry.MODELS.build(dict(type='ResNet', depth=18, init_cfg=init))
    backbone.init_weights()
    expected, state = torch.load(weights, weights_only=True), backbone.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], value) for key, value in expected.items())
    print('loaded', len(state))
assert not any(name.split('.')[0] == 'mmairl' for name in sys.modules)
"""


@pytest.fixture(scope='module')
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return, for each hook or tool that writes checkpoints, a checkpoint of a ResNet-18 and a file with the tensors of its
    backbone.
    """
    folder, files = tmp_path_factory.mktemp('portable'), {}
    run.register()
    for name, kind in (('exact hook', 'ExactCheckpointHook'), ("mmengine's hook", 'CheckpointHook')):
        cfg = toy.config('byol_lars_r50_200e.py', str(folder / kind), steps=1, width=64)
        cfg.default_hooks.checkpoint = dict(type=kind, by_epoch=False, interval=1)
        cfg.custom_hooks = [*cfg.get('custom_hooks', []), dict(type='OnlineProbeHook', classes=4)]
        runner = run.train(cfg)
        backbone = {key: value.detach() for key, value in runner.model.backbone.state_dict().items()}
        torch.save(backbone, folder / f'{kind}.weights')
        files[name] = folder / kind / 'iter_1.pth', folder / f'{kind}.weights'
    source, weights = files['exact hook']
    consolidate(source, folder / 'consolidated.pth')
    files['consolidate'] = folder / 'consolidated.pth', weights
    command = [sys.executable, ROOT / 'tools/normrescale.py', source, folder / 'rescaled.pth', '--constant', '0.5']
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    state = load_checkpoint(folder / 'rescaled.pth')['state_dict']
    rescaled = {key.removeprefix('backbone.'): state[key] for key in state if key.startswith('backbone.')}
    assert not torch.equal(rescaled['conv1.weight'], torch.load(weights)['conv1.weight'])
    torch.save(rescaled, folder / 'rescaled.weights')
    files['normrescale'] = folder / 'rescaled.pth', folder / 'rescaled.weights'
    return files


def without_mmairl(program: str, *arguments: object) -> str:
    process = subprocess.run(
        [sys.executable, '-c', program, *map(str, arguments)], cwd='/', capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.mark.parametrize(
    'writer', [WRITERS[0], *(pytest.param(writer, marks=pytest.mark.slow) for writer in WRITERS[1:])]
)
def test_checkpoint_loads_in_torch_and_mmengine(saved, writer):
    assert 'loaded 120' in without_mmairl(LOAD, *saved[writer])


def test_rescaled_checkpoint_holds_weights_only(saved):
    before = load_checkpoint(saved['exact hook'][0])
    after = torch.load(saved['normrescale'][0], weights_only=True)
    assert after.keys() == {'meta', 'state_dict'} and after['state_dict'].keys() == before['state_dict'].keys()
    assert 'run' not in after['meta'] and 'constant 0.5' in after['meta']['mmairl_origin']['normrescale']


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['mmdet', 'mmseg'])
def test_backbones_of_mmdet_and_mmseg_load_checkpoints(saved, kind):
    pytest.importorskip(f'{kind}.version', reason='the core set-up has no mmdet and mmseg')
    files = [file for writer in WRITERS[:3] for file in saved[writer]]
    assert without_mmairl(BUILD, kind, *files).count('loaded 120') == 3


def test_saved_config_keeps_braces_and_classes(toy_config, tmp_path):
    """mmengine replaces `{{ ... }}` in the text of a config, and cannot read a class as a `type`."""
    cfg = toy_config(steps=1, width=4)
    cfg.note = 'a {{ b }}'
    cfg.custom_hooks = [dict(type=EmptyCacheHook)]
    runner = run.train(cfg)
    text = load_checkpoint(Path(runner.work_dir) / 'iter_1.pth')['meta']['cfg']
    (tmp_path / 'again.py').write_text(text)
    again = load_config(tmp_path / 'again.py')
    assert again.note == 'a {{ b }}'
    assert again.custom_hooks[0].type.endswith('.EmptyCacheHook')

"""YAML and JSON configs: what is refused, what is kept, and that a config of ours is the same written as one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

from mmairl import configs
from mmairl.configs import load_config, read_config, write_config
from mmairl.errors import UserError

ROOT = Path(__file__).parents[1]
SHIPPED = ['mocov2plus_r50_200e.py', 'byol_lars_r50_200e.py', 'demo/mocov2plus_shapes.py', 'evaluation/voc2007_r50.py']


def config(folder: Path, values: dict | str, name: str = 'run.yaml') -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.fixture
def canary(tmp_path) -> Path:
    return tmp_path / 'canary'


def refused(path: Path, canary: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read_config(path)
    assert '\n' not in str(caught.value) and not canary.exists()


def test_yaml_that_builds_an_object_is_refused(tmp_path, canary):
    for tag, arguments in {
        'object/apply:os.mkdir': f'["{canary}"]',
        'object/new:os.mkdir': f'["{canary}"]',
        'object/apply:subprocess.check_call': f'[[touch, "{canary}"]]',
        'name:os.mkdir': '',
        'module:os': '',
    }.items():
        path = config(tmp_path, f'work_dir: a\nmodel: !!python/{tag} {arguments}\n')
        refused(path, canary, 'line 2, asks for a Python object')
    path = config(tmp_path, f'model: !!python/object/apply:os.mkdir ["{canary}"]\n')
    yaml.load(path.read_text(), Loader=yaml.UnsafeLoader)  # the one that mmengine uses by itself
    assert canary.exists()


@pytest.mark.parametrize('suffix', ['yaml', 'yml', 'json', 'YAML'])
def test_a_type_that_is_not_registered_is_refused(tmp_path, canary, suffix):
    for name in (
        'subprocess.run',
        'torch.load',
        'mmengine.load',  # unpickles a file or an address
        'mmengine.utils.import_modules_from_strings',
        'mmcv.video.processing.convert_video',  # puts its arguments into a shell command
        'mmairl.engine.checkpoint.load_checkpoint',
        'antigravity',  # the platform would import it
        '__import__("os").system("true")',  # mmcv evaluates the type of an nms
    ):
        for values in (
            dict(model=dict(type=name)),
            dict(model=dict(type='Siamese', parts=[1, [dict(a=dict(type=name))]])),
            dict(test_cfg=dict(nms=dict(type=name))),
            dict(optim_wrapper=dict(constructor=name)),
            dict(runner_type=name),
            dict(custom_hooks=[dict(type='EMAHook', ema_type=name)]),
        ):
            refused(config(tmp_path, values, f'run.{suffix}'), canary, 'registered|imported and called')


def test_other_ways_to_code_are_refused(tmp_path, canary, monkeypatch):
    (tmp_path / 'evil.py').write_text(f'__import__("os").mkdir({str(canary)!r})')
    monkeypatch.syspath_prepend(tmp_path)
    for values in (
        dict(custom_imports=dict(imports=['evil'])),
        dict(custom_imports=dict(imports='evil')),
        dict(custom_imports=dict(imports=['mmairl', 'evil'], allow_failed_imports=True)),
        dict(custom_imports=['evil']),
        dict(default_scope='evil'),
        dict(model=dict(type='Siamese', _scope_='evil')),
        dict(work_dir='{{ fileDirname }}/a'),
        dict(model={'ty{{$X:pe}}': 'os.system'}),
        dict(model=dict(type='{{_base_.x}}')),
        dict(work_dir='{{$HOME:a}}'),
        dict(backend_args=dict(backend='memcached', sys_path='evil')),
        dict(pipeline=[dict(decode_backend='pickle')]),
        dict(pipeline=[dict(dtype='float32) or print(1')]),
        dict(collate_fn='os.system'),
    ):
        refused(config(tmp_path, values), canary, 'config is data, only Python may do that')
    pytest.importorskip('mmdet', reason='the core set-up has no mmdet')
    for name in (  # registered classes that read code from their arguments
        'mmdet.CameraMotionCompensation',
        'mmdet.KnowledgeDistillationSingleStageDetector',
        'mmdet.LAD',  # a child of the one above
        'mmdet.OpenImagesDataset',
        'RFSearchHook',
    ):
        refused(config(tmp_path, dict(model=dict(type=name))), canary, 'not among the modules that data may name')


def test_a_python_base_is_followed_only_if_it_comes_with_mmairl(tmp_path, canary):
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs' / 'evil.py').write_text(f'__import__("os").mkdir({str(canary)!r})')
    (tmp_path / 'link.yaml').symlink_to(tmp_path / 'configs' / 'evil.py')
    outside = os.path.relpath(tmp_path / 'configs' / 'evil.py', ROOT / 'configs')
    for base in ('configs/evil.py', 'link.yaml', f'{ROOT}/configs/{outside}'):
        refused(config(tmp_path, dict(_base_=[base])), canary, 'does not come with mmairl')
        config(tmp_path, dict(_base_=base), 'between.json')
        refused(config(tmp_path, dict(_base_='between.json')), canary, 'does not come with mmairl')
    for base in ('mmdet::_base_/default_runtime.py', 'a.txt', 7, {}):
        refused(config(tmp_path, dict(_base_=base)), canary, 'is not a path')
    for name in ('run.yaml', 'gone.yaml', 'a' * 5000 + '.json', '\0.json'):
        refused(config(tmp_path, dict(_base_=name)), canary, 'its own _base_|is not there')
    cfg = read_config(config(tmp_path, dict(_base_=str(ROOT / 'configs/byol_r50_200e.py'), work_dir='here')))
    assert cfg.work_dir == 'here' and cfg.model.type == 'Siamese'


READS = """if True:
    import os, sys
    from mmairl.configs import read_config
    from mmairl.errors import UserError
    try:
        read_config(sys.argv[1])
    except UserError as error:
        print(error)
    os.chdir('/')
    print(read_config(sys.argv[1]).model.head.type)"""


def test_a_base_among_the_projects_brings_its_parts_but_not_those_of_the_working_directory(tmp_path, canary):
    """In a process that has imported nothing yet, where Python looks for modules in the working directory first."""
    (tmp_path / 'projects' / 'msbreg').mkdir(parents=True)
    for name in ('__init__.py', 'msbreg/__init__.py', 'msbreg/msbreg.py'):
        (tmp_path / 'projects' / name).write_text(f'__import__("os").mkdir({str(canary)!r})')
    base = ROOT / 'projects/msbreg/configs/msbreg_k4_r50_300e.py'
    path = config(tmp_path, dict(_base_=str(base), model=dict(head=dict(type='RegularisedHead'))))
    command = [sys.executable, '-W', 'ignore', '-c', READS, str(path)]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert 'do not come with mmairl' in done.stdout and not canary.exists()
    assert done.stdout.split()[-1:] == ['RegularisedHead'], done.stderr


def test_what_is_no_mapping_or_too_large_is_one_sentence(tmp_path, canary):
    for text in ('a: [1', '- a', 'a.b: 1', '', '\xff\xfe', '1: 2', '\0', 'a: &a [*a, *a]', '&a [*a]', 'text: 1'):
        (tmp_path / 'run.yaml').write_text(text, 'latin1')
        refused(tmp_path / 'run.yaml', canary, 'is not|larger or deeper|keeps for itself')
    lines = ['l0: &l0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]']  # a file that refers to itself a billion times
    lines += [f'l{n}: &l{n} [{", ".join([f"*l{n - 1}"] * 10)}]' for n in range(1, 10)]
    for text in ('\n'.join(lines), 'a: ' + '[' * 5000):
        refused(config(tmp_path, text), canary, 'larger or deeper')


def test_bases_are_merged_as_mmengine_merges_them(tmp_path):
    config(tmp_path, dict(a=dict(b=1, c=dict(d=2)), e=[1, 2]), 'one.json')
    config(tmp_path, dict(f=dict(g=1)), 'two.yml')
    own = dict(_base_=['one.json', 'two.yml'], a=dict(b=3, c=dict(_delete_=True, h=4)), e=[5], f=dict(g=2))
    path = config(tmp_path, own)
    assert read_config(path).to_dict() == dict(a=dict(b=3, c=dict(h=4)), e=[5], f=dict(g=2))
    assert read_config(path).to_dict() == Config.fromfile(path).to_dict()
    refused(config(tmp_path, dict(_base_=['one.json', 'one.json'])), tmp_path / 'none', 'both set a')


def test_a_config_written_as_data_is_equal_but_for_the_tuples_of_json(tmp_path):
    assert read_config(config(tmp_path, 'lr: 1e-3\nname: "1e-3"')).to_dict() == dict(lr=0.001, name='1e-3')
    for name in SHIPPED:
        cfg = load_config(str(ROOT / 'configs' / name))
        cfg.dump(tmp_path / 'theirs.yaml')
        assert '!!python/tuple' in (tmp_path / 'theirs.yaml').read_text()
        assert read_config(tmp_path / 'theirs.yaml').to_dict() == cfg.to_dict()
        cfg.spans = dict(one=(1, 2, (3, [4])), text='1e-3', small=1e-5, yes='yes', none=None)
        write_config(cfg, tmp_path / 'run.yaml')
        assert read_config(tmp_path / 'run.yaml').to_dict() == cfg.to_dict()
        write_config(cfg, tmp_path / 'run.json')
        assert read_config(tmp_path / 'run.json').to_dict() == json.loads(json.dumps(cfg.to_dict()))


def test_a_config_that_holds_an_object_cannot_be_written_as_data(tmp_path):
    for value in (object(), Path('a'), {1, object()}):
        for name in ('run.yaml', 'run.json'):
            with pytest.raises(UserError, match='not plain data'):
                write_config(Config(dict(a=dict(b=value))), tmp_path / name)
    with pytest.raises(UserError, match='not to'):
        write_config(Config(dict(a=1)), tmp_path / 'run.py')
    assert not list(tmp_path.iterdir())


def test_the_values_that_run_are_those_that_were_checked(tmp_path, monkeypatch):
    """One reading: a file that changes after it does not change the config."""
    path = config(tmp_path, dict(work_dir='checked'))
    check = configs.check

    def and_swap(*arguments: object) -> None:
        check(*arguments)
        config(tmp_path, dict(work_dir='swapped'))

    monkeypatch.setattr(configs, 'check', and_swap)
    assert read_config(path).work_dir == 'checked'

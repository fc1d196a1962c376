"""The content of the wheel, and its use in places where the checkout cannot be imported."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.hub import get_config

import mmairl
from mmairl.config import config_path
from mmairl.errors import UserError

ROOT = Path(__file__).parents[1]
NOT_SOURCE = {'.git', '.venv', 'work_dirs', 'build', 'dist', 'data', 'shared'}


def shell(*command: object, cwd: Path, env: dict[str, str] | None = None, timeout: int = 600) -> str:
    process = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-5000:]
    return process.stdout


@pytest.fixture(scope='module')
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout for builds, including files that an earlier build could have left."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        top = NOT_SOURCE if Path(folder) == ROOT else set()
        return {name for name in names if name in top or name == '__pycache__' or name.endswith('.egg-info')}

    copy = tmp_path_factory.mktemp('source') / 'mmairl'
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    for stale in ('build/lib/mmairl/removed.py', 'build/lib/mmairl/.mim/configs/removed.py'):
        (copy / stale).parent.mkdir(parents=True, exist_ok=True)
        (copy / stale).write_text('')
    return copy


@pytest.fixture(scope='module')
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp('wheel')
    flags = ('--no-deps', '--no-build-isolation', '--no-index', '--disable-pip-version-check', '-q')
    shell(sys.executable, '-m', 'pip', 'wheel', *flags, '-w', out, source, cwd=out)
    return zipfile.ZipFile(next(out.glob('mmairl-*.whl')))


@pytest.fixture(scope='module', params=sorted({'3.11', '3.13', '{}.{}'.format(*sys.version_info)}))
def environment(request, wheel: zipfile.ZipFile) -> Path:
    """Return the folder with the programs of an environment that has the wheel and its requirements.

    If the environment exists, only the wheel is installed again.
    """
    folder = ROOT / 'build' / 'wheel-envs' / request.param
    if not (folder / 'bin' / 'python').exists():
        shell(interpreter(request.param), '-m', 'venv', folder, cwd=ROOT)
    pip = [folder / 'bin' / 'python', '-m', 'pip', '--disable-pip-version-check', '-q', 'install']
    pip += ['-c', ROOT / 'requirements' / 'constraints.txt']
    shell(*pip, f'{wheel.filename}[openmmlab]', 'timm', cwd=ROOT, timeout=3000)
    shell(*pip, '--force-reinstall', '--no-deps', wheel.filename, cwd=ROOT)
    return folder / 'bin'


def interpreter(version: str) -> str:
    """Return a Python of this version from PATH or from pyenv.

    The commands of pyenv on PATH fail for versions that are not active.
    """
    name = f'python{version}'
    installed = sorted(map(str, Path.home().glob(f'.pyenv/versions/{version}.*/bin/{name}')))
    for path in (shutil.which(name), *installed):
        if path and subprocess.run([path, '-c', 'import venv'], capture_output=True).returncode == 0:
            return path
    pytest.skip(f'{name} is not installed')


@pytest.fixture(scope='module')
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp('site')
    wheel.extractall(target)
    return target


# Hide the editable installation of this checkout, but not OpenMMLab's packages.
BLOCKED = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if '__editable__' not in repr(finder)]
sys.path[:] = [path for path in sys.path if path not in ({root!r}, {root!r} + '/tests')]
"""


def elsewhere(code: str, installed: Path, folder: Path) -> str:
    """Run a program with the installed package instead of the checkout. Return the last line that it prints."""
    env = {**os.environ, 'PYTHONPATH': str(installed), 'OMP_NUM_THREADS': '1'}
    output = shell(sys.executable, '-W', 'ignore', '-c', BLOCKED.format(root=str(ROOT)) + code, cwd=folder, env=env)
    return output.strip().splitlines()[-1]


def test_wheel_is_complete_and_names_requirements(wheel):
    held = set(wheel.namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / 'mmairl').rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }
    beside = {f'mmairl/.mim/{path.relative_to(ROOT).as_posix()}' for path in shipped()}
    assert {name for name in held if '.dist-info/' not in name} == package | beside, (
        'the wheel lacks files or has stale files'
    )
    assert 'mmairl/.mim/configs/studies/_published/byol.yaml' in held and 'mmairl/report/templates/page.html' in held
    lines = wheel.read(f'mmairl-{mmairl.__version__}.dist-info/METADATA').decode().splitlines()
    assert f'Version: {mmairl.__version__}' in lines
    for name in ('torch', 'scikit-learn', 'filelock'):
        assert any(line.startswith(f'Requires-Dist: {name}') and 'extra' not in line for line in lines), name
    assert any(line.startswith('Requires-Dist: mmengine') and 'extra == "openmmlab"' in line for line in lines)
    scripts = wheel.read(f'mmairl-{mmairl.__version__}.dist-info/entry_points.txt').decode()
    assert 'mmairl = mmairl.cli.main:main' in scripts and 'mmairl/py.typed' in held


def shipped() -> list[Path]:
    """Return the config and tool files that the wheel must contain for OpenMMLab's mim."""
    paths = [path for name in ('configs', 'tools') for path in (ROOT / name).rglob('*')]
    paths.append(ROOT / 'model-index.yml')
    return [path for path in paths if path.is_file() and '__pycache__' not in path.parts]


def test_sdist_is_complete_and_leaves_no_links(source, tmp_path):
    shell(sys.executable, 'setup.py', '-q', 'sdist', '-d', tmp_path, cwd=source)
    with tarfile.open(next(tmp_path.glob('*.tar.gz'))) as archive:
        held = {name.partition('/')[2] for name in archive.getnames()}
    assert {'setup.py', 'requirements/runtime.txt'} <= held
    assert {path.relative_to(ROOT).as_posix() for path in shipped()} <= held
    assert not (source / 'mmairl' / '.mim').exists()


def test_import_without_openmmlab_is_an_error(installed, tmp_path):
    code = """
sys.modules['mmengine'] = None
try:
    import mmairl
except ImportError as error:
    print(error)
"""
    assert "run: pip install 'mmairl[openmmlab]'" in elsewhere(code, installed, tmp_path)


USES = """
import contextlib, io, json, runpy
from pathlib import Path
import mmairl
from mmengine.config import Config
from mmengine.hub import get_config
from mmairl.config import home, load_config
from mmairl.errors import UserError
from mmairl.study.published import row
from mmairl.study.spec import read_study

found = dict(
    package=mmairl.__file__,
    inherited=Config.fromfile('mine.py').to_dict(),
    got=get_config('mmairl::mocov2plus_r50_200e.py').total_batch_size,
    rows=len(read_study(home() / 'configs/studies/crossover.yaml').rows),
    published=row('byol_sgd')['in1k'],
)
try:
    load_config('mmairl::projects/msbreg/configs/msbreg_k2_r50_300e.py')
except UserError as error:
    found['project'] = error.code
sys.argv = ['train.py', 'mine.py', '--plan', '4', '--per-gpu', '64']
with contextlib.redirect_stdout(io.StringIO()) as said:
    runpy.run_path(str(Path(mmairl.__file__).parent / '.mim/tools/train.py'), run_name='__main__')
print(json.dumps({**found, 'plan': said.getvalue()}))
"""


def test_installed_package_equals_the_checkout(installed, tmp_path):
    """Compare configs that are loaded by name, data files, and the tool that `mim run mmairl train` starts."""
    (tmp_path / 'mine.py').write_text("_base_ = 'mmairl::longer/byol_lars_r50_300e.py'\ntotal_batch_size = 512\n")
    results = json.loads(elsewhere(USES, installed, tmp_path))
    assert Path(results['package']).is_relative_to(installed)
    expected = Config.fromfile(ROOT / 'configs/longer/byol_lars_r50_300e.py').to_dict() | {'total_batch_size': 512}
    assert results['inherited'] == json.loads(json.dumps(expected))
    assert (results['got'], results['rows'], results['published']) == (1024, 4, 72.1)
    assert results['project'] == 'project-not-installed'
    assert '512 = 4 GPUs x 64' in results['plan']


def test_get_config_equals_the_path():
    ours = get_config('mmairl::demo/mocov2plus_shapes.py')
    assert ours.to_dict() == Config.fromfile(ROOT / 'configs' / 'demo' / 'mocov2plus_shapes.py').to_dict()
    assert get_config('mmpretrain::byol/byol_resnet50_16xb256-coslr-200e_in1k.py').model.type == 'BYOL'
    with pytest.raises(AssertionError, match='does not support'):
        get_config('nobody::a/b.py')


@pytest.mark.parametrize(
    'name, says',
    [
        ('mmairl::mocov2plus_r50_20e.py', "did you mean 'mmairl::mocov2plus_r50_200e.py'"),
        ('mmairl::../setup.py', 'no such config'),
        ('mmairl::/etc/passwd', 'no such config'),
    ],
)
def test_misspelled_config_name_gets_a_suggestion(name, says):
    with pytest.raises(UserError, match=says):
        config_path(name)


SMALL = ['evaluation.train.count=256', 'evaluation.test.count=128']
SHORT = ['train_dataloader.dataset.count=256', 'total_batch_size=64', 'train_cfg.max_epochs=2', *SMALL]
LOAD = """
import timm
print(timm.create_model('local-dir:hub', pretrained=True).num_features)
"""


@pytest.mark.slow
# The first call downloads torch and its libraries for GPUs.
@pytest.mark.timeout(3600)
def test_first_ten_minutes_with_the_wheel_alone(environment, tmp_path):
    env = {'PATH': f'{environment}:/usr/bin:/bin', 'HOME': str(tmp_path), 'OMP_NUM_THREADS': '1'}
    config = 'mmairl::demo/mocov2plus_shapes.py'

    def user(*command: object) -> str:
        return shell(*command, cwd=tmp_path, env=env, timeout=3000)

    printed = user('mmairl', 'demo', '--seed', 0, '--cfg-options', *SHORT)
    assert (tmp_path / 'work_dirs/demo/report.html').is_file()
    *_, checkpoint, evaluate, health = printed.splitlines()
    checkpoint = checkpoint.removeprefix('checkpoint ')
    assert evaluate == f'next: mmairl evaluate knn {config} {checkpoint}'
    assert 'k-NN, k = 20' in user('mmairl', *evaluate.split()[2:], '--cfg-options', *SMALL)
    # This command is not run, because a run of so few steps logs no health.
    assert health.startswith('next: mmairl report health ')
    user('mmairl', 'convert', checkpoint, 'hub/', '--to', 'hub')
    assert user('python', '-c', LOAD).split()[-1] == '128'

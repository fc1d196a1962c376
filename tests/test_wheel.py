"""The wheel has every file of the package, and the configs and tools that OpenMMLab's package manager needs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = (
    'mmairl',
    'configs',
    'tools',
    'requirements',
    'setup.py',
    'pyproject.toml',
    'README.md',
    'LICENSE',
    'model-index.yml',
)


def test_wheel_is_complete(tmp_path):
    source = tmp_path / 'source'
    source.mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    flags = ('--no-deps', '--no-build-isolation', '--no-index', '-q')
    command = [sys.executable, '-m', 'pip', 'wheel', *flags, '-w', tmp_path, source]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    held = set(zipfile.ZipFile(next(tmp_path.glob('*.whl'))).namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / 'mmairl').rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }
    assert package <= held, package - held
    assert {'mmairl/.mim/configs/mocov2plus_r50_200e.py', 'mmairl/.mim/tools/dist_train.sh'} <= held
    assert 'mmairl/.mim/model-index.yml' in held

"""Heads and their configs were once in `projects/`. Stored configs may still use these old names of modules and folders."""

import pytest

from mmairl.config import MOVED_MODULES, config_path, load_config

OLD = {
    'projects/more_methods/configs/dino_shapes.py': 'configs/methods/dino_shapes.py',
    'projects/byol_variants/configs/simclr_r50_300e.py': 'configs/byol_variants/simclr_r50_300e.py',
}


@pytest.mark.parametrize('old', OLD)
def test_old_folder_of_a_config_loads(old):
    assert config_path(f'mmairl::{old}').as_posix().endswith(OLD[old])
    assert load_config(old).model.type == 'Siamese'


@pytest.mark.parametrize('module', [name for name in MOVED_MODULES if name.startswith('projects.')])
def test_stored_config_with_old_module_loads(module, tmp_path):
    path = tmp_path / 'stored.yaml'
    path.write_text(f'custom_imports: {{imports: [{module}], allow_failed_imports: false}}\n')
    assert load_config(path).custom_imports.imports == [MOVED_MODULES[module]]

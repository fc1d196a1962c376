"""`mmairl.compare` rejects invalid names before a file is written; tests/study/test_external.py runs comparisons."""

import pytest
import torch

import mmairl
from mmairl.apis.compare import config_of
from mmairl.errors import UserError
from mmairl.registry import MODELS

NARROW = dict(type='mmairl.ResNet', depth=18, stem_channels=4, base_channels=4)


@pytest.mark.parametrize('names, code', [(('a b', 'a-b'), ''), (('a', '😀'), 'bad-name')])
def test_bad_name_is_an_error_before_a_file_is_written(names, code, tmp_path):
    networks = {}
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        path = tmp_path / f'{seed}.pth'
        torch.save(MODELS.build(NARROW).state_dict(), path)
        networks[name] = [path]
    with pytest.raises(UserError) as caught:
        mmairl.compare(networks, 'mmairl::demo/mocov2plus_shapes.py', ['knn'], tmp_path / 'out')
    assert code in ('', caught.value.code) and not (tmp_path / 'out').exists()


def test_options_override_the_network_of_a_config(tmp_path):
    options = {'model.backbone.depth': 50}
    config = 'mmairl::demo/mocov2plus_shapes.py'
    assert config_of('a.pth', 'mmairl::evaluation/folder_r50.py', config, options).model.backbone.depth == 50

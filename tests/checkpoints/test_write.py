"""Export to the formats of other projects: a round trip is exact, and the projects load the files."""

import json
from itertools import product

import pytest
import timm
import torch
import torchvision
from harness.backbones import assert_same_features, dinov3, narrow_resnet, resnet, torchvision_vit, vit, with_prefix
from harness.errors import raises_code
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import WRITERS, write_backbone

SUFFIXES = dict(detectron2='.pkl', safetensors='.safetensors')


def registers() -> torch.nn.Module:
    return vit('vit_small_patch14_reg4_dinov2', patch_size=16)


@pytest.mark.parametrize('to', WRITERS)
def test_round_trip_is_exact_and_cut_file_raises(to, tmp_path):
    state = narrow_resnet().state_dict()
    torch.save(dict(state_dict=with_prefix('encoder_q.', state)), tmp_path / 'moco.pth')
    out = tmp_path / f'out{SUFFIXES.get(to, ".pth")}'
    write_backbone(read_backbone(tmp_path / 'moco.pth'), out, to)
    back = read_backbone(out)
    assert back.weights.keys() == state.keys()
    for key, value in back.weights.items():
        assert value.dtype == state[key].dtype
        # Detectron2's format stores no counters, so they start again at 0.
        assert torch.equal(value, state[key]) or (to == 'detectron2' and 'num_batches' in key)
    assert back.origin['file'] == 'moco.pth' and back.origin['source_format'] == 'MoCo v1 or v2'
    whole = out.read_bytes()
    for fraction in (0, 0.5, 0.99):
        out.write_bytes(whole[: int(fraction * len(whole))])
        with raises_code('damaged-checkpoint'):
            read_backbone(out)


# Each network is converted to each format that can represent it.
NETWORKS = {'resnet': resnet, 'vit': vit, 'registers': registers, 'dinov3': dinov3}
WITHOUT = {('vit', 'detectron2'), *product(('registers', 'dinov3'), ('detectron2', 'torchvision'))}


@pytest.mark.parametrize('name', NETWORKS)
@pytest.mark.parametrize('to', WRITERS)
def test_every_network_converts_to_every_format(to, name, tmp_path, run_tool):
    network = NETWORKS[name]()
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    out = tmp_path / f'out{SUFFIXES.get(to, ".pth")}'
    command = ('tools/convert.py', tmp_path / 'a.pth', out, '--to', to)
    if (name, to) in WITHOUT:
        with pytest.raises(SystemExit, match='2'):
            run_tool(*command)
        assert not out.exists()
        return
    run_tool(*command)
    assert_same_features(out, network)
    assert (tmp_path / 'README.md').exists() == (to in ('timm', 'safetensors'))


def timm_vit(name: str = 'vit_small_patch16_224', **how: object) -> torch.nn.Module:
    return timm.create_model(name, num_classes=0, img_size=32, patch_size=16, embed_dim=64, depth=2, num_heads=1, **how)


LOADED = {
    'resnet in torchvision': (resnet, 'torchvision', torchvision.models.resnet18),
    'resnet in timm': (resnet, 'timm', lambda: timm.create_model('resnet18')),
    'vit in torchvision': (torchvision_vit, 'torchvision', torchvision_vit),
    'vit in timm': (vit, 'timm', timm_vit),
    'dinov3 in timm': (dinov3, 'timm', dinov3),
    'gated dinov3 in timm': (lambda: dinov3('small_plus'), 'timm', lambda: dinov3('small_plus')),
}


@pytest.mark.parametrize('name', LOADED)
def test_package_loads_its_format(name, tmp_path):
    make, to, theirs = LOADED[name]
    state = make().state_dict()
    torch.save(state, tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.pth', to)
    again = torch.load(tmp_path / 'b.pth')
    faults = theirs().load_state_dict(again, strict=False)
    assert not faults.unexpected_keys and set(faults.missing_keys) <= {'fc.weight', 'fc.bias'}
    assert again.keys() == state.keys() and all(torch.equal(value, again[key]) for key, value in state.items())


def test_registers_go_back_to_timm(tmp_path):
    """The features are equal, but the tensors are not, because mmairl also stores position embeddings for registers."""
    network = registers()
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.pth', to='timm')
    again = registers()
    again.load_state_dict(torch.load(tmp_path / 'b.pth'))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again(images), network(images))


@pytest.mark.parametrize('to', ['safetensors', 'mmairl'])
def test_vit_of_torchvision_survives_another_format(to, tmp_path):
    state = torchvision_vit().state_dict()
    torch.save(state, tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / f'b.{to}', to)
    if to == 'safetensors':
        timm_vit(mlp_ratio=2).load_state_dict(load_file(tmp_path / f'b.{to}'))
    write_backbone(read_backbone(tmp_path / f'b.{to}'), tmp_path / 'c.pth', 'torchvision')
    again = torch.load(tmp_path / 'c.pth')
    assert again.keys() == state.keys() and all(torch.equal(value, again[key]) for key, value in state.items())


def test_layer_scale_is_an_error_in_torchvision(tmp_path):
    torch.save(vit('vit_small_patch14_dinov2', patch_size=16).state_dict(), tmp_path / 'a.pth')
    with raises_code('unwritable-network'):
        write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.pth', 'torchvision')
    assert not (tmp_path / 'b.pth').exists()


def test_source_format_of_old_files_is_read(tmp_path):
    metadata = dict(file='b.pth', format='MoCo v1 or v2')
    save_file(resnet().state_dict(), tmp_path / 'a.safetensors', metadata=metadata)
    assert read_backbone(tmp_path / 'a.safetensors').origin == dict(file='b.pth', source_format='MoCo v1 or v2')


def test_safetensors_of_shared_memory_and_metadata(tmp_path):
    state = narrow_resnet().state_dict()
    state['bn1.bias'] = state['bn1.weight']
    torch.save(dict(meta=dict(mmairl_origin={'\ud800': '\udfff'}), state_dict=state), tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'a.safetensors', 'safetensors')
    assert torch.equal(load_file(tmp_path / 'a.safetensors')['bn1.bias'], state['bn1.weight'])
    with safe_open(tmp_path / 'a.safetensors', framework='pt') as file:
        metadata = file.metadata()
    assert metadata['format'] == 'pt' and metadata['source_format'].startswith('plain')


def test_statistics_stay_with_converted_files(tmp_path, run_tool):
    (source := tmp_path / 'released').mkdir()
    torch.save(vit().state_dict(), source / 'a.pth')
    stated = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3, size=dict(height=32, width=32))
    (source / 'preprocessor_config.json').write_text(json.dumps(stated))
    for to in ('safetensors', 'mmairl'):
        run_tool('tools/convert.py', source / 'a.pth', tmp_path / to / f'a.{to}', '--to', to)
        images = read_backbone(tmp_path / to / f'a.{to}').input
        assert (list(images.mean), list(images.std), images.size) == ([0.5] * 3, [0.5] * 3, 32)
    assert '- mean: 0.5, 0.5, 0.5\n' in (tmp_path / 'safetensors' / 'README.md').read_text()
    out = tmp_path / 'flags' / 'a.pth'
    flags = ('--mean', 0.1, 0.2, 0.3, '--std', 1, 1, 1)
    run_tool('tools/convert.py', source / 'a.pth', out, '--to', 'timm', *flags)
    assert '- mean: 0.1, 0.2, 0.3\n' in out.with_name('README.md').read_text()
    assert read_backbone(out).input.size == 32


def test_heads_and_interpolation_stay_with_converted_files(tmp_path, run_tool):
    settings = {'model.backbone.arch.num_heads': '4', 'train_dataloader.dataset.channels': '3'}
    state = with_prefix('backbone.', vit().state_dict())
    torch.save(dict(meta=dict(settings=settings), state_dict=state), tmp_path / 'a.pth')
    flags = ('--mean', 0.1, 0.2, 0.3, '--std', 1, 1, 1)
    for name, more in (('b.safetensors', flags), ('c.safetensors', ())):
        run_tool('tools/convert.py', tmp_path / 'a.pth', tmp_path / name, '--to', 'safetensors', *more)
        converted = read_backbone(tmp_path / name)
        assert (converted.heads, converted.input.channels) == (4, 3)
    (tmp_path / 'hub').mkdir()
    torch.save(vit().state_dict(), tmp_path / 'hub' / 'a.pth')
    stated = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=3)
    (tmp_path / 'hub' / 'preprocessor_config.json').write_text(json.dumps(stated))
    for more in (flags, ()):
        run_tool('tools/convert.py', tmp_path / 'hub' / 'a.pth', tmp_path / 'd.pth', *more)
        assert read_backbone(tmp_path / 'd.pth').input.interpolation == 'bicubic'

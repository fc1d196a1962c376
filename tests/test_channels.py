"""Images that are not 8-bit RGB: training, evaluation, embedding, export to timm, the page of views, and errors."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import mmairl
from mmairl.checkpoints.init import fitted
from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import load_config
from mmairl.engine import run as launch
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import extract, extraction
from mmairl.evaluation.sets import evaluation_sets

CONFIG = """
_base_ = 'mmairl::mocov2plus_r18_folder_100e.py'
crop = [dict(type='RandomResizedCrop', size=32, scale=(0.2, 1.0))]
rest = [
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0, hue=0),
    dict(type='GaussianBlur', p=0.5), dict(type='Solarize', p=0.2), dict(type='RandomFlip'),
]
whole = [dict(type='Resize', size=40), dict(type='CenterCrop', size=32)]
model = dict(
    backbone=dict(in_channels={channels}, stem_channels=8, base_channels=8),
    projector=dict(in_channels=64, hidden_channels=32), predictor=dict(hidden_channels=32), queue=dict(length=16),
    data_preprocessor=dict(mean={mean}, std={std}, views={device}),
)
train_dataloader = dict(dataset=dict(root='{root}', channels={channels}, views={workers}), num_workers=1)
evaluation = dict(
    train=dict(root='{root}', channels={channels}, views=[whole]),
    test=dict(root='{root}', channels={channels}, views=[whole]),
)
total_batch_size = 8
train_cfg = dict(max_epochs=2)
default_hooks = dict(checkpoint=dict(interval=1))
randomness = dict(seed=3)
"""


def write_tiff(path, pixels) -> None:
    tifffile = pytest.importorskip('tifffile')
    tifffile.imwrite(path.with_suffix('.tif'), pixels, photometric='minisblack', planarconfig='contig')


def write_png(path, pixels) -> None:
    Image.fromarray(pixels[..., 0]).save(path.with_suffix('.png'))


FIVE_CHANNELS = 'five channels of 16 bits in TIFF, changed on the device'
ONE_CHANNEL = 'one channel in PNG'
CASES = {
    FIVE_CHANNELS: (5, np.uint16, write_tiff, 'device'),
    ONE_CHANNEL: (1, np.uint8, write_png, 'workers'),
}


@pytest.fixture
def case(request, tmp_path):
    """Return the number of channels, a config file, and a folder of 24 images.

    The images of the two classes differ in brightness.
    """
    channels, kind, write, side = CASES[request.param]
    random, root = np.random.default_rng(0), tmp_path / 'images'
    for number in range(24):
        level = (0.2, 0.6)[number % 2]
        pixels = (random.random((40, 44, channels)) * 0.2 + level) * np.iinfo(kind).max
        (root / 'ab'[number % 2]).mkdir(parents=True, exist_ok=True)
        write(root / 'ab'[number % 2] / f'{number:02}', pixels.astype(kind))
    sides = dict(workers=('[crop + rest] * 2', 'None'), device=('[crop] * 2', '[rest] * 2'))
    workers, device = sides[side]
    text = CONFIG.format(
        channels=channels, mean=[0.5] * channels, std=[0.2] * channels, root=root, workers=workers, device=device
    )
    (tmp_path / 'cells.py').write_text(text)
    return channels, tmp_path / 'cells.py', root


def run(file, work_dir):
    launch.train(load_config(file, {'work_dir': str(work_dir)}))
    return work_dir / 'epoch_2.pth'


@pytest.mark.parametrize(
    'case',
    [FIVE_CHANNELS, pytest.param(ONE_CHANNEL, marks=pytest.mark.slow)],
    indirect=True,
)
def test_commands_accept_checkpoints_of_any_channels(case, tmp_path, run_tool, capsys):
    channels, file, root = case
    checkpoint = run(file, tmp_path / 'whole')
    assert load_checkpoint(checkpoint)['state_dict']['backbone.conv1.weight'].shape[1] == channels

    run_tool('tools/evaluate.py', 'knn', file, checkpoint, '--k', 3, '--no-cache', '--workers', 0)
    result = json.loads((tmp_path / 'whole/epoch_2_student_knn.json').read_text())
    assert result['scores']['k-NN, k = 3'] > 90, 'classes of different brightness are not distinguished'
    features, names = mmairl.embed(checkpoint, root, size=32)
    cfg = load_config(file)
    dataset = evaluation_sets(cfg)['test'][1]
    assert names == [dataset.name(index) for index in range(24)]
    cut = mmairl.embed(checkpoint, [dataset.raw(0).permute(1, 2, 0).numpy(), names[1]], size=32)[0]
    np.testing.assert_allclose(cut, features[:2], rtol=1e-4, atol=1e-6)
    assert extract(load_backbone(cfg, checkpoint), dataset, extraction(cfg)).x.shape == features.shape

    run_tool('tools/convert.py', checkpoint, tmp_path / 'out.pth', '--to', 'timm')
    converted = load_checkpoint(tmp_path / 'out.pth')
    network = timm.models.resnet.ResNet(timm.models.resnet.BasicBlock, [2] * 4, in_chans=channels, num_classes=0)
    assert (
        network.conv1.weight.shape[1:] == converted['conv1.weight'].shape[1:]
        and network.state_dict().keys() == converted.keys()
    )
    run_tool('tools/report.py', 'views', file, '--out', tmp_path / 'views.html')
    caption = 'Channels 1 to 3 of 5 are shown as red' if channels == 5 else 'Channel 1 of 1 is shown as gray'
    assert caption in (tmp_path / 'views.html').read_text()


@pytest.mark.parametrize('case', [ONE_CHANNEL], indirect=True)
def test_wrong_channels_raise_before_the_first_step(case, tmp_path):
    file = case[1]

    def said(**options) -> str:
        with pytest.raises(UserError) as caught:
            cfg = load_config(file, {'work_dir': str(tmp_path / 'run'), **options})
            launch.train(cfg)
        return str(caught.value)

    grey = [[dict(type='RandomGrayscale', p=0.2)]] * 2
    assert 'RandomGrayscale (leave it out)' in said(**{'train_dataloader.dataset.views': grey})
    assert 'the first convolution takes 3; set model' in said(**{'model.backbone.in_channels': 3})
    assert '00.png: the image has 1 channel' in said(**{'train_dataloader.dataset.channels': 5})


def test_pretrain_omits_rgb_views_for_other_channels(tmp_path):
    random, folder = np.random.default_rng(0), tmp_path / 'images'
    folder.mkdir()
    pixels = random.integers(0, 4096, (64, 40, 40, 2), np.uint16)
    for number, one in enumerate(pixels):
        np.save(folder / f'{number}.npy', one)
    narrow = {'model.backbone.stem_channels': 8, 'model.backbone.base_channels': 8, 'model.projector.in_channels': 64}
    out = mmairl.pretrain(
        'byol', folder, tmp_path / 'out', 1, size=32, batch=32, workers=0, channels=2, seed=1, options=narrow
    )
    settings = load_checkpoint(out)['meta']['settings']
    values = pixels.reshape(-1, 2) / 65535
    np.testing.assert_allclose(json.loads(settings['model.data_preprocessor.mean']), values.mean(0), rtol=1e-6)
    np.testing.assert_allclose(json.loads(settings['model.data_preprocessor.std']), values.std(0), rtol=1e-6)
    views = settings['train_dataloader.dataset.views']
    assert 'Grayscale' not in views and "'brightness': 0.4" in views and "'saturation': 0," in views
    assert mmairl.embed(out, folder)[0].shape == (64, 64)


@pytest.mark.parametrize('channels', (1, 2, 3, 4, 5, 7))
def test_rgb_kernels_are_adapted_as_timm_does(channels):
    checkpoint = dict(
        weights={'conv1.weight': torch.randn(8, 3, 7, 7), 'layer1.0.conv1.weight': torch.randn(8, 8, 3, 3)}
    )
    target = {'conv1.weight': torch.empty(8, channels, 7, 7), 'layer1.0.conv1.weight': torch.empty(8, 8, 3, 3)}
    adapted = fitted(checkpoint['weights'], target, 'rgb.pth')
    theirs = timm.models.adapt_input_conv(channels, checkpoint['weights']['conv1.weight'])
    torch.testing.assert_close(adapted['conv1.weight'], theirs)
    assert adapted['layer1.0.conv1.weight'] is checkpoint['weights']['layer1.0.conv1.weight']
    if channels != 3:
        with pytest.raises(UserError, match=f'trained on images of {channels} channels, .* expects 3; set'):
            fitted(target, checkpoint['weights'], 'other.pth')

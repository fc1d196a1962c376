"""Images that are not 8-bit RGB: training, evaluation, embedding, export to timm, the page of views, and errors."""

import json

import numpy as np
import pytest
from harness.errors import raises_code
from PIL import Image

import mmairl
from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import load_config
from mmairl.engine import run as launch
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
train_dataloader = dict(dataset=dict(root='{root}/train', channels={channels}, views={workers}), num_workers=1)
evaluation = dict(
    train=dict(root='{root}/train', channels={channels}, views=[whole]),
    test=dict(root='{root}/test', channels={channels}, views=[whole]),
)
total_batch_size = 8
train_cfg = dict(max_epochs=2)
default_hooks = dict(checkpoint=dict(interval=1))
randomness = dict(seed=3)
"""


def write_tiff(path, pixels) -> None:
    tifffile = pytest.importorskip('tifffile')
    tifffile.imwrite(
        path.with_suffix('.tif'), pixels, photometric='minisblack', planarconfig='contig'
    )


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
    """Return the number of channels, a config file, and the folder of the training images.

    The images of the two classes differ in brightness.
    """
    channels, kind, write, side = CASES[request.param]
    random = np.random.default_rng(0)
    for part, count in (('train', 24), ('test', 12)):
        for number in range(count):
            level = (0.2, 0.6)[number % 2]
            pixels = (random.random((40, 44, channels)) * 0.2 + level) * np.iinfo(kind).max
            path = tmp_path / part / 'ab'[number % 2] / f'{number:02}'
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, pixels.astype(kind))
    sides = dict(workers=('[crop + rest] * 2', 'None'), device=('[crop] * 2', '[rest] * 2'))
    workers, device = sides[side]
    settings = dict(
        channels=channels,
        mean=[0.5] * channels,
        std=[0.2] * channels,
        workers=workers,
        device=device,
    )
    (tmp_path / 'cells.py').write_text(CONFIG.format(root=tmp_path, **settings))
    return channels, tmp_path / 'cells.py', tmp_path / 'test'


@pytest.mark.parametrize(
    'case',
    [FIVE_CHANNELS, pytest.param(ONE_CHANNEL, marks=pytest.mark.slow)],
    indirect=True,
)
def test_commands_accept_checkpoints_of_any_channels(case, tmp_path, run_tool):
    channels, file, root = case
    launch.train(load_config(file, {'work_dir': str(tmp_path / 'whole')}))
    checkpoint = tmp_path / 'whole/epoch_2.pth'
    run_tool(
        'tools/evaluate.py',
        'knn',
        file,
        checkpoint,
        '--k',
        3,
        '--cache',
        'none',
        '--workers',
        0,
        '--out',
        tmp_path / 'knn.json',
    )
    scores = json.loads((tmp_path / 'knn.json').read_text())['scores']
    assert scores['k-NN, k = 3'] > 90, 'classes of different brightness are not distinguished'
    features, names = mmairl.embed(checkpoint, root, size=32)
    dataset = evaluation_sets(load_config(file))['test'][1]
    assert names == [dataset.name(index) for index in range(12)]
    cut = mmairl.embed(checkpoint, [dataset.raw(0).permute(1, 2, 0).numpy(), names[1]], size=32)[0]
    np.testing.assert_allclose(cut, features[:2], rtol=1e-4, atol=1e-6)
    run_tool('tools/convert.py', checkpoint, tmp_path / 'out.pth', '--to', 'timm')
    assert load_checkpoint(tmp_path / 'out.pth')['conv1.weight'].shape[1] == channels
    run_tool('tools/report.py', 'views', file, '--out', tmp_path / 'views.html')
    assert (tmp_path / 'views.html').is_file()


@pytest.mark.parametrize('case', [ONE_CHANNEL], indirect=True)
@pytest.mark.parametrize(
    'options, code',
    [
        (
            {'train_dataloader.dataset.views': [[dict(type='RandomGrayscale', p=0.2)]] * 2},
            'views-channels',
        ),
        ({'model.backbone.in_channels': 3}, 'other-channels'),
        ({'train_dataloader.dataset.channels': 5}, 'other-channels'),
    ],
)
def test_wrong_channels_raise_before_the_first_step(case, tmp_path, options, code):
    # Errors of data workers lose their code.
    options = {'train_dataloader.num_workers': 0, 'work_dir': str(tmp_path / 'run'), **options}
    cfg = load_config(case[1], options)
    with raises_code(code):
        launch.train(cfg)

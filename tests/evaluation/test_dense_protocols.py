"""The protocols `segment` and `depth_probe`: scores equal loops in float64, and heads learn to find bright squares."""

import math
import sys
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.apis.compare import compare
from mmairl.config import load_config
from mmairl.data.dense import IGNORED, DenseDataset
from mmairl.evaluation import dense_protocol
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.dense_protocol import Windows, points_of
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.segment import chance
from mmairl.registry import DATASETS
from mmairl.study.scale import read_scale
from mmairl.study.task_hours import task_hours

pytestmark = pytest.mark.skipif(not find_spec('mmseg'), reason='requires mmseg')


@DATASETS.register_module(force=True)
class BrightSquares(DenseDataset):
    """A bright square on a dark image.

    The target is the class of each pixel, or its depth: 2 m in the square and 6 m elsewhere.
    """

    classes = ['background', 'square']

    def __init__(self, count: int = 24, seed: int = 0, target: str = 'classes', shift: int = 0) -> None:
        super().__init__(target)
        self.count = count
        self.seed = seed
        self.shift = shift

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = np.random.default_rng((self.seed, index))
        top, left = random.integers(0, 24, 2)
        square = np.zeros((48, 40), bool)
        square[top : top + 20, left : left + 16] = True
        image = random.integers(0, 60, (3, 48, 40)) + 160 * square
        target = square.astype(np.int64) + self.shift if self.target == 'classes' else np.where(square, 2.0, 6.0)
        return torch.from_numpy(image).byte(), torch.from_numpy(target)


VIT = dict(
    type='mmpretrain.VisionTransformer',
    arch=dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32),
    img_size=32,
    patch_size=8,
)
SMALL = dict(layers=(0, 1), size=40, crop=32, stride=8, epochs=6, batch=4, lr=0.02)


@pytest.fixture
def dense_cfg(cfg):
    cfg.evaluation.train = dict(type='BrightSquares')
    cfg.evaluation.test = dict(type='BrightSquares', count=10, seed=1)
    return cfg


def probe(cfg, name='segment', subject='random', **options):
    return evaluate(cfg, name, subject, settings=settings_for(name, **{**SMALL, **options}))


def test_miou_equals_a_float64_loop():
    settings = settings_for('segment', ignore=(2,))
    random = np.random.default_rng(0)
    classes = ['a', 'b', 'c', 'd']
    statistics = []
    counts = np.zeros((4, 2))
    for _ in range(3):
        logits = random.normal(size=(4, 7, 9))
        # Class d is predicted, but is in no target.
        target = random.choice([0, 1, 2, IGNORED], (7, 9))
        prepared = settings.prepared(torch.from_numpy(target).float())
        statistics.append(settings.measure(torch.from_numpy(logits), prepared, classes))
        for row in range(7):
            for column in range(9):
                truth = target[row, column]
                if truth in (2, IGNORED):
                    continue
                predicted = int(np.argmax(logits[:, row, column]))
                counts[truth, 0] += predicted == truth
                for label in {truth, predicted}:
                    counts[label, 1] += 1
    scores, details = settings.summarize('linear', sum(statistics), classes)
    assert scores['mIoU'] == pytest.approx(100 * np.mean(counts[:, 0] / counts[:, 1]), abs=1e-4)
    assert details['per_class']['b'] == pytest.approx(100 * counts[1, 0] / counts[1, 1], abs=1e-4)


def test_missing_mmseg_raises_before_training(dense_cfg, monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmseg.evaluation.metrics', None)
    monkeypatch.setattr(dense_protocol.DenseProtocol, 'run', None)
    with raises_code('missing-mmseg'):
        probe(dense_cfg)


def test_depth_scores_equal_a_loop_and_mmseg():
    from mmseg.evaluation.metrics import DepthMetric

    settings = settings_for('depth_probe', max_depth=5.0)
    random = np.random.default_rng(0)
    prediction = random.uniform(0.5, 4, (1, 6, 8))
    target = random.uniform(0, 6, (6, 8)) * (random.random((6, 8)) < 0.8)
    prepared = settings.prepared(torch.from_numpy(target))
    *ours, images = settings.measure(torch.from_numpy(prediction), prepared, []).tolist()
    assert images == 1
    assert not settings.measure(torch.from_numpy(prediction), 0 * prepared, []).any()
    pairs = [(p, t) for p, t in zip(prediction.flat, target.flat) if 1e-3 < t < 5]
    assert ours[0] == pytest.approx(np.mean([max(p / t, t / p) < 1.25 for p, t in pairs]))
    assert ours[3] == pytest.approx(math.sqrt(np.mean([(p - t) ** 2 for p, t in pairs])))
    metric = DepthMetric(min_depth_eval=1e-3, max_depth_eval=5.0)
    maps = dict(pred_depth_map=torch.from_numpy(prediction), gt_depth_map=torch.from_numpy(target))
    metric.process({}, [{name: dict(data=values) for name, values in maps.items()}])
    theirs = metric.compute_metrics(metric.results)
    assert ours == pytest.approx([theirs[name] for name in ('d1', 'd2', 'd3', 'rmse', 'abs_rel')], rel=1e-5)


def test_segmentation_heads_learn_bright_squares(dense_cfg, tmp_path):
    store = tmp_path / 'store'
    result = probe(dense_cfg, cache=store)
    scores = result.scores
    assert list(scores) == ['segment, linear mIoU (stored features)', 'segment, k-NN mIoU (stored features)']
    assert min(scores.values()) > 75
    files = {path.name: path.stat().st_mtime_ns for path in store.iterdir()}
    size = sum(path.stat().st_size for path in store.iterdir())
    assert result.details['stored_bytes'] == pytest.approx(size, abs=300)
    assert probe(dense_cfg, cache=store).scores == scores
    assert files == {path.name: path.stat().st_mtime_ns for path in store.iterdir()}, 'features were extracted again'


def test_permuted_cells_score_as_chance(dense_cfg, tmp_path):
    result = probe(dense_cfg, permuted=True, cache=tmp_path)
    scores = result.scores
    assert next(iter(scores.values())) == pytest.approx(result.details['linear']['chance'], abs=3)
    assert probe(dense_cfg, permuted=True, cache=tmp_path).scores == scores


@pytest.mark.parametrize('areas', [(900, 100), (30, 40, 30, 0), (5, 5, 5, 5)])
def test_chance_is_the_best_score_without_images(areas):
    """Two predictions need no image: classes drawn at their frequencies, and the most frequent class for all pixels.

    `chance` must equal the higher of their scores, which are simulated on 200 000 pixels.
    """
    random = np.random.default_rng(0)
    frequency = np.array(areas) / sum(areas)
    truth = random.choice(len(areas), 200_000, p=frequency)
    scores = []
    for predicted in (random.permutation(truth), np.full_like(truth, frequency.argmax())):
        present = [label for label, area in enumerate(areas) if area]
        both = [np.mean((truth == label) & (predicted == label)) for label in present]
        either = [np.mean((truth == label) | (predicted == label)) for label in present]
        scores.append(np.mean(np.divide(both, either)))
    assert chance(torch.tensor(areas).double()) == pytest.approx(max(scores), abs=0.005)


def test_neighbors_of_100_000_images_fit_in_memory():
    """Positions and labels are selected block by block, so no array holds all cells."""
    cells = 100 * 100_000
    labels = np.arange(100, dtype=np.float16) % 7
    points = np.lib.stride_tricks.as_strided(labels, (100_000, 100, 16), (0, 2, 0))
    settings = settings_for('segment', ignore=(0, 2))
    tracemalloc.start()
    rows, cell_labels = settings.bank_cells(points)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert len(np.unique(rows)) == settings.bank == len(cell_labels)
    assert cell_labels.equal(torch.from_numpy(labels[rows % 100]).long())
    assert set(cell_labels.tolist()) == {1, 3, 4, 5, 6}
    assert rows.mean() == pytest.approx(cells / 2, rel=0.01)


def test_random_crops_do_not_depend_on_the_workers(dense_cfg):
    options = dict(random_crops=True, heads=('linear',), epochs=3)
    scores = probe(dense_cfg, **options).scores
    assert list(scores) == ['segment, linear mIoU']
    assert probe(dense_cfg, **options, workers=1).scores == scores
    assert scores['segment, linear mIoU'] > 60


def test_depth_heads_learn_bright_squares(dense_cfg):
    for part in ('train', 'test'):
        dense_cfg.evaluation[part].target = 'depth'
    scores = probe(dense_cfg, 'depth_probe').scores
    names = [f'depth_probe, {head} delta < 1.25 (stored features)' for head in ('bins', 'regression')]
    assert list(scores)[::2] == names
    assert min(list(scores.values())[::2]) > 80
    assert max(list(scores.values())[1::2]) < 1.5


@pytest.mark.parametrize('size, crop', [((48, 40), 32), ((33, 32), 32), ((100, 32), 32)])
def test_windows_cover_each_pixel(size, crop):
    settings = settings_for('segment', size=32, crop=crop, stride=20)
    count = torch.zeros(size)
    for window in settings._windows(torch.zeros(3, *size)):
        assert count[window].shape == (crop, crop)
        count[window] += 1
    assert count.min() >= 1


def test_points_keep_their_cell():
    target = torch.arange(8 * 12).view(1, 8, 12).float()
    points = points_of(target, (2, 3))
    assert points.shape == (1, 6, 16)
    assert sorted(points[0, 4].tolist()) == sorted(target[0, 4:8, 4:8].flatten().tolist())


def test_random_windows_pad_with_unknown_pixels():
    settings = settings_for('segment', size=32, crop=32)
    windows = Windows(DATASETS.get('BrightSquares')(), settings, epoch=0)
    sizes = {(tuple(image.shape), tuple(target.shape)) for image, target in (windows[i] for i in range(24))}
    assert sizes == {((3, 32, 32), (32, 32))}
    assert any(bool((windows[i][1] == IGNORED).any()) for i in range(24))


@pytest.mark.parametrize(
    'options, data, code',
    [
        (dict(crop=64), {}, 'crop-above-size'),
        (dict(heads=('svm',)), {}, 'unknown-head'),
        (dict(upsample='cubic'), {}, 'unknown-upsampling'),
        (dict(layers=(4,)), {}, 'unknown-layer'),
        (dict(subject='pixels'), {}, 'no-spatial-features'),
        (dict(), {'evaluation.train.shift': 1}, 'label-out-of-range'),
        (dict(), {'evaluation.train': dict(type='Noise', _delete_=True)}, 'unsupported-labels'),
        (dict(), {'evaluation.test': dict(type='Scenes', count=2, _delete_=True)}, 'other-classes'),
        (dict(), {'model.backbone': dict(type='Pixels', _delete_=True)}, 'no-spatial-features'),
        (dict(layers=(-1,), size=4, crop=4), {'model.backbone': dict(VIT, _delete_=True)}, 'image-below-patch'),
    ],
)
def test_bad_input_is_an_error(dense_cfg, options, data, code):
    dense_cfg.merge_from_dict(data)
    with raises_code(code):
        probe(dense_cfg, **options)


def test_full_disk_is_an_error_before_extraction(dense_cfg, monkeypatch, tmp_path):
    usage = dense_protocol.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(dense_protocol.shutil, 'disk_usage', lambda _: usage._replace(free=1000))
    with raises_code('disk-too-small'):
        probe(dense_cfg, cache=tmp_path / 'store')
    assert not list((tmp_path / 'store').iterdir())


def test_classification_of_dense_images_is_an_error(dense_cfg):
    with raises_code('unsupported-labels'):
        evaluate(dense_cfg, 'knn', 'random')


def test_config_sets_the_settings_of_a_protocol():
    cfg = load_config('mmairl::evaluation/scenes_r18.py')
    assert settings_for('segment', cfg).size == 64
    assert settings_for('segment', cfg, size=96).size == 96
    cfg.evaluation.settings.segment.no_such = 1
    with raises_code('unknown-setting'):
        settings_for('segment', cfg)


def test_studies_plan_dense_tasks_in_hours():
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    tasks = ['segment@scenes_r18', 'depth_probe@scenes_depth_r18']
    hours = task_hours(cfg, tasks, read_scale('demo'))
    assert min(hours[task] for task in tasks) > 0


def test_shipped_dense_configs_are_complete():
    root = Path(__file__).parents[2] / 'configs/evaluation'
    names = [path.stem for path in root.glob('*.py') if 'settings=dict' in path.read_text()]
    assert {'scenes_r18', 'scenes_depth_r18'} <= set(names)
    for name in names:
        cfg = load_config(f'mmairl::evaluation/{name}.py')
        for protocol in cfg.evaluation.settings:
            settings_for(protocol, cfg)


PUBLIC_LAYOUTS = {
    'voc2012_segment_r50': ('JPEGImages/a.jpg', 'SegmentationClass/a.png'),
    'ade20k_segment_r50': ('images/training/a.jpg', 'annotations/training/a.png'),
    'cityscapes_segment_r50': ('leftImg8bit/train/x/a_leftImg8bit.png', 'gtFine/train/x/a_gtFine_labelTrainIds.png'),
    'nyuv2_depth_r50': ('images/train/a_1.jpg', 'annotations/train/a_1.png'),
}


@pytest.mark.parametrize('name', PUBLIC_LAYOUTS)
def test_shipped_dense_configs_read_public_layouts(tmp_path, name):
    described = load_config(f'mmairl::evaluation/{name}.py').evaluation.train
    kind = np.uint16 if 'depth' in name else np.uint8
    pixels = (np.zeros((4, 6, 3), np.uint8), np.array([[0, 1, 2, 2, 2, 2]] * 4, kind))
    for file, values in zip(PUBLIC_LAYOUTS[name], pixels):
        (tmp_path / file).parent.mkdir(parents=True)
        Image.fromarray(values).save(tmp_path / file)
    if 'ann_file' in described.source:
        (tmp_path / described.source.ann_file).parent.mkdir(parents=True)
        (tmp_path / described.source.ann_file).write_text('a\n')
    described.source.data_root = str(tmp_path)
    image, target = DATASETS.build(dict(described, count=1))[0]
    assert image.shape == (3, 4, 6)
    first = target[0, :3].tolist()
    if name == 'ade20k_segment_r50':
        assert first == [IGNORED, 0, 1], 'pixels with the value 0 are not ignored'
    elif 'depth' in name:
        assert first == pytest.approx([0, 0.001, 0.002])
    else:
        assert first == [0, 1, 2]


@pytest.mark.slow
def test_comparison_has_a_dense_task(tmp_path):
    data = tmp_path / 'scenes.py'
    data.write_text("""
_base_ = 'mmairl::evaluation/scenes_r18.py'
model = dict(backbone=dict(base_channels=8, stem_channels=8), in_channels=64)
evaluation = dict(
    train=dict(count=8), test=dict(count=4), settings=dict(segment=dict(size=32, epochs=1, heads=['linear']))
)
""")
    cfg = load_config(str(data))
    networks = dict(a=[tmp_path / '0.pth', tmp_path / '1.pth'], b=[tmp_path / '2.pth', tmp_path / '3.pth'])
    for seed, path in enumerate([*networks['a'], *networks['b']]):
        torch.save(load_backbone(cfg, None, seed=seed).state_dict(), path)
    compared = compare(networks, data=str(data), tasks=['segment'], out=tmp_path / 'out', jobs=1)
    rows = {row['name']: row for row in compared.record['rows']}
    assert {'a', 'b', 'random initialisation'} <= rows.keys()
    assert all(math.isfinite(run['scores']['segment']) for row in rows.values() for run in row['runs'])

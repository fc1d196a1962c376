"""Dense probes learn halves of images, and their scores equal direct calculations."""

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image
from torch.utils.data import Dataset

from mmairl.data.shapes import background
from mmairl.evaluation.dense import DepthProbe, Segmentation
from mmairl.evaluation.dense_images import IGNORED, MMSegImages, Scenes
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.registry import DATASETS
from mmairl.study.tasks import config_of


@DATASETS.register_module(force=True)
class Halves(Dataset):
    """Images with a dark and a bright half, in random order. The bright half is nearer."""

    classes = ['dark', 'bright']

    def __init__(self, count: int = 16, depth: bool = False) -> None:
        self.count = count
        self.depth = depth

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> str:
        return f'{self.count} halves of depth {self.depth}'

    def __getitem__(self, index: int) -> dict:
        mask = torch.zeros(64, 64, dtype=torch.int64)
        mask[:, :32] = 1
        mask = mask.rot90(index % 4)
        noise = torch.randint(0, 60, (3, 64, 64), generator=torch.Generator().manual_seed(index))
        target = torch.where(mask == 1, 1.0, 4.0) if self.depth else mask
        return dict(inputs=[(noise + 150 * mask).byte()], data_samples=dict(target=target))


@pytest.mark.parametrize('protocol, depth', [('segment', False), ('depth_probe', True)])
def test_probe_learns_and_is_reproducible(cfg, protocol, depth):
    cfg.evaluation = {part: dict(type='Halves', depth=depth) for part in ('train', 'test')}
    how = dict(size=64, epochs=6, batch=4, layers=(0, 1), lr=0.05)
    if protocol == 'depth_probe':
        how.update(epochs=20, max_depth=6.0)
    settings = settings_for(protocol, **how)
    first, second = (evaluate(cfg, protocol, 'random', settings=settings) for _ in range(2))
    name, score = next(iter(first.scores.items()))
    assert first.scores == second.scores and name.startswith(protocol)
    assert score > 75 and first.details['test_images'] == 16


def test_miou_equals_plain_counts():
    random = np.random.default_rng(0)
    probe = Segmentation(ignore=[3])
    target = torch.from_numpy(random.integers(0, 4, (9, 9)))
    outputs = torch.from_numpy(random.normal(size=(4, 9, 9)))
    target[0] = IGNORED
    pixels = probe._pixels(outputs[None], target[None], testing=True)
    scores, details = probe.score([pixels], 'abcd')
    predicted, counted = outputs.argmax(0), (target != 3) & (target != IGNORED)
    each = []
    for label in range(3):
        ours, true = (predicted == label) & counted, (target == label) & counted
        each.append(100 * float((ours & true).sum() / (ours | true).sum()))
    assert scores['mIoU'] == pytest.approx(np.mean(each))
    assert details['accuracy'] == pytest.approx(
        100 * float((predicted == target)[counted].float().mean())
    )


def test_depth_scores_equal_plain_formulas():
    probe = DepthProbe(max_depth=5.0, scored=(0, 4, 0, 4))
    target = torch.tensor(np.random.default_rng(0).uniform(0.5, 8, (6, 6)))
    counted = probe.counted(target, testing=True)
    depth = torch.full((int(counted.sum()), 1), 2.0)
    scores, _ = probe.score([(depth, target[counted])], [])
    truth = target[:4, :4][target[:4, :4] < 5].numpy()
    assert scores['RMSE (m)'] == pytest.approx(np.sqrt(np.mean((2 - truth) ** 2)))
    assert scores['AbsRel'] == pytest.approx(np.mean(np.abs(2 - truth) / truth))
    assert scores['delta < 1.25'] == pytest.approx(
        100 * np.mean(np.maximum(2 / truth, truth / 2) < 1.25)
    )


def test_mmseg_pairs_and_wrong_labels(tmp_path):
    pytest.importorskip('mmseg')
    for folder, content in (
        ('images', np.zeros((8, 9, 3), np.uint8)),
        ('masks', np.full((8, 9), 200, np.uint8)),
    ):
        (tmp_path / folder).mkdir()
        Image.fromarray(content).save(
            tmp_path / folder / f'a.{"jpg" if folder == "images" else "png"}'
        )
    source = dict(type='BaseSegDataset', data_root=str(tmp_path), metainfo=dict(classes=['x', 'y']))
    source['data_prefix'] = dict(img_path='images', seg_map_path='masks')
    with raises_code('bad-target'):
        MMSegImages(source)[0]
    Image.fromarray(np.eye(8, 9, dtype=np.uint8)).save(tmp_path / 'masks' / 'a.png')
    item = MMSegImages(source)[0]
    assert torch.equal(item['data_samples']['target'], torch.eye(8, 9).long())
    assert item['inputs'][0].shape == (3, 8, 9)


def test_targets_of_scenes_cover_the_drawn_shapes():
    for index in range(3):
        image, target = Scenes(3, seed=2).pair(index)
        ground = background(np.random.default_rng((2, index)), 48).resize((48, 48)).convert('L')
        apart = (image[0] - torch.tensor(np.array(ground)).float()).abs()
        # The noise has a standard deviation of 8, and a shape is at least 64 brighter or darker.
        assert apart[target == 0].median() < 25 and apart[target > 0].median() > 50
        assert torch.equal(Scenes(9, seed=2).pair(index)[1], target)


def test_study_segments_scenes_by_a_vit(cfg):
    arch = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)
    cfg.model.backbone = dict(
        type='mmpretrain.VisionTransformer', arch=arch, img_size=28, patch_size=4
    )
    measured = config_of('segment@scenes', cfg)
    measured.evaluation.train.count = measured.evaluation.test.count = 8
    result = evaluate(measured, 'segment', 'random')
    assert list(result.scores) == ['segment, mIoU'] and result.details['test_images'] == 8
    assert result.details['image_size'] == [48, 48]

"""Mixtures of data sets: how many images of each data set an epoch has, exact resume, labels, and the origin of each
image.
"""

import math

import numpy as np
import pytest
import torch
from data.archives import draw
from harness import resume as resuming
from harness import toy
from harness.errors import raises_code
from mmengine.config import Config
from test_docs import shown_files

from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import load_config
from mmairl.data.datasets import ImageFolder, UnlabelledFolder
from mmairl.data.mixture import Mixture
from mmairl.data.packed import pack
from mmairl.data.sampler import ResumableSampler
from mmairl.engine.checks import check_config
from mmairl.evaluation.embed import dataset_of
from mmairl.evaluation.feature_protocol import by_set
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.report.map_page import by_class, name_of

pytestmark = pytest.mark.usefixtures('own_cache')

SIZES, WEIGHTS = [7, 50, 203], [3, 0.3, 1]
COUNTS = [21, 15, 203]


class Sizes:
    """A substitute for a Mixture. It has the sizes of sets and shards, but no images. The size of a shard is at most 10."""

    def __init__(self) -> None:
        self.bounds, self.per_epoch = np.cumsum([0, *SIZES]), np.array(COUNTS)
        self.shard_bounds = [np.array([*range(0, size, 10), size]) for size in SIZES]

    def __len__(self) -> int:
        return int(self.bounds[-1])


def epochs_of(sampler: ResumableSampler, count: int) -> list[list[int]]:
    epochs = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return epochs


@pytest.mark.parametrize('order', ['images', 'shards'])
def test_epoch_has_the_weighted_number_of_each_set(order):
    sampler = ResumableSampler(Sizes(), seed=3, order=order, window=4)
    epochs = epochs_of(sampler, 11)
    assert len(sampler) == sampler.images == sum(COUNTS)
    for after, epoch in enumerate(epochs, 1):
        sets = np.searchsorted(np.cumsum(SIZES), epoch, 'right')
        assert np.bincount(sets).tolist() == COUNTS
        assert order == 'shards' or 0.15 < (sets[1:] != sets[:-1]).mean() < 0.4, (
            'the order does not change the data set at about 0.27 of the images'
        )
        seen = np.bincount(np.concatenate(epochs[:after]), minlength=sum(SIZES))
        for counts, weight in zip(np.split(seen, np.cumsum(SIZES)[:-1]), WEIGHTS):
            assert {math.floor(after * weight + 1e-9), math.ceil(after * weight - 1e-9)} >= set(counts.tolist())
    assert len({tuple(epoch) for epoch in epochs}) == 11
    # An epoch takes 0.3 * 50 images of the second set, so epochs 0 and 10 both start a new
    # permutation of it.
    first, second = ({image for image in epochs[epoch] if 7 <= image < 57} for epoch in (0, 10))
    assert len(first) == len(second) == 15 and first != second


@pytest.mark.parametrize('order', ['images', 'shards'])
def test_order_does_not_depend_on_processes(order):
    whole = epochs_of(ResumableSampler(Sizes(), seed=5, order=order), 3)[2]
    for processes in (1, 2, 3):
        start, dealt = 60, []
        for rank in range(processes):
            sampler = ResumableSampler(Sizes(), seed=5, order=order)
            sampler.rank, sampler.world_size = rank, processes
            sampler.set_epoch(2, start)
            dealt.append(list(sampler))
        together = [image for step in zip(*dealt) for image in step]
        assert together[: len(whole) - start] == whole[start:]
        assert together[len(whole) - start :] == whole[: len(together) - len(whole) + start]


def test_mixture_without_weights_has_each_image_once():
    data = Sizes()
    data.per_epoch = None
    assert sorted(ResumableSampler(data, seed=1, order='shards')) == list(range(260))
    assert sorted(ResumableSampler(data, seed=1)) == list(range(260))


@pytest.fixture(scope='module')
def places(tmp_path_factory):
    """Write three data sets: `a` with the classes ant and bee, `b` with bee and cat, and `c` without labels."""
    root = tmp_path_factory.mktemp('sets')
    for name, classes, count in [('a', ('ant', 'bee'), 10), ('b', ('bee', 'cat'), 14), ('c', ('',), 9)]:
        for at in range(count):
            draw(root / name / classes[at % len(classes)] / f'{name}{at:02}.png', 32, 32)
    list(pack(ImageFolder(root / 'b'), root / 'b.tar'))
    return root


def three(root) -> dict:
    return dict(
        a=dict(type='ImageFolder', root=str(root / 'a')),
        b=dict(type='Shards', root=[str(root / 'b.tar')]),
        c=dict(type='UnlabelledFolder', root=str(root / 'c')),
    )


def test_mixture_has_images_and_labels_of_its_sets(places):
    data = Mixture(three(places))
    assert len(data) == 33 and data.classes == ['ant', 'bee', 'cat'] and data.per_epoch is None
    assert data.origins.tolist() == [0] * 10 + [1] * 14 + [2] * 9
    assert data.labels.tolist() == [0] * 5 + [1] * 5 + [1] * 7 + [2] * 7 + [-1] * 9
    folders = [ImageFolder(places / 'a'), ImageFolder(places / 'b'), UnlabelledFolder(places / 'c')]
    for index, raw in enumerate(one.raw(at) for one in folders for at in range(len(one))):
        assert torch.equal(data.raw(index), raw)
    assert [data.member(at) for at in (0, 10, 32)] == ['a/ant/a00.png', 'b/bee/b00', 'c/c08.png']
    assert data.name(32) == f'{places}/c/c08.png'
    half = dict(type='Part', dataset=dict(type='ImageFolder', root=str(places / 'a')), held=False, fraction=0.5)
    assert Mixture(dict(half=half)).member(0).startswith('half/ant/a0')
    item = Mixture(three(places), views=[[dict(type='CenterCrop', size=16)]] * 2)[12]
    assert [view.shape for view in item['inputs']] == [(3, 16, 16)] * 2
    assert item['data_samples'] == dict(label=1, index=12)
    bare = Mixture(dict(one=UnlabelledFolder(places / 'c'), two=UnlabelledFolder(places / 'a')))
    assert bare.classes == [] and bare.labels.tolist() == [-1] * 19 and bare.labels.untyped_storage().nbytes() == 8


def test_unsuitable_sets_and_weights_raise(places, tmp_path):
    np.save(tmp_path / 'five.npy', np.zeros((4, 4, 5), np.uint8))
    sets = three(places)
    view = [[dict(type='CenterCrop', size=16)]]
    five_channels = dict(type='UnlabelledFolder', root=str(tmp_path), channels=5)
    for wrong, code in [
        (dict(weights=dict(a=0)), 'bad-weight'),
        (dict(weights=dict(a=math.inf)), 'bad-weight'),
        (dict(weights=dict(aa=1)), 'unknown-set'),
        (dict(sets=dict(sets, d=five_channels)), 'mixed-images'),
        (dict(sets=dict(sets, d=dict(sets['a'], views=view))), 'views-of-set'),
        (dict(sets=dict(d=dict(type='Mixture', sets=sets))), 'nested-mixture'),
    ]:
        with raises_code(code):
            Mixture(**{'sets': sets, **wrong})
    with raises_code('bad-order'):
        ResumableSampler(Mixture(sets), seed=1, order='shards')


def config(work_dir, dataset: dict, **options) -> Config:
    cfg = resuming.config('workers', str(work_dir), epochs=2, every=2, **options)
    cfg.train_dataloader.dataset = dict(dataset, views=[resuming.VIEW] * 2)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    return cfg


def test_mixture_config_of_the_docs_resumes_exactly(places, tmp_path, monkeypatch):
    """An epoch has 2 x 9 + 0.3 x 14 images, which fill two batches of 8 and part of a third."""
    (tmp_path / 'two_sets.py').write_text(shown_files('docs/how-to/data.md')['two_sets.py'])
    roots = {'photos': str(places / 'c'), 'web': [str(places / 'b.tar')]}
    options = {f'train_dataloader.dataset.sets.{name}.root': root for name, root in roots.items()}
    whole = load_config(str(tmp_path / 'two_sets.py'), options)
    check_config(whole)
    assert len(whole.train_dataloader.dataset.views) == 2
    described = whole.train_dataloader.dataset.to_dict()
    one = resuming.run(config(tmp_path / 'whole', described))
    assert load_checkpoint(one)['place']['images'] == [18, 4]
    resuming.run(config(tmp_path / 'left', described, leave_at=3))
    resuming.assert_the_same_run(one, resuming.run(config(tmp_path / 'left', described, resume=True)))
    with raises_code('other-images', r'\[18, 4\] .*\[9, 14\]'):
        resuming.run(config(tmp_path / 'whole', {**described, 'weights': dict(web=1)}, resume=True))
    plain = config(tmp_path / 'plain', described)
    plain.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    with raises_code('unused-weights'):
        resuming.run(plain)


def test_evaluation_has_each_sets_own_score(places, tmp_path):
    cfg = toy.config('mocov2plus_r50_200e.py', str(tmp_path))
    both = dict(type='Mixture', sets={name: three(places)[name] for name in 'ab'})
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)
    cfg.evaluation = dict(train=both, test=both, batch_size=8)
    result = evaluate(cfg, 'knn', 'pixels', settings=settings_for('knn', ks=(3,)))
    scores = result.scores
    assert list(scores) == ['k-NN, k = 3', 'k-NN, k = 3, a', 'k-NN, k = 3, b']
    assert scores['k-NN, k = 3'] == pytest.approx((10 * scores['k-NN, k = 3, a'] + 14 * scores['k-NN, k = 3, b']) / 24)
    # Two of the 24 images could not be read, so only 22 have a result.
    right = np.arange(22) % 3 == 0
    set_of_image = [int(index >= 10) for index in range(24) if index not in (3, 15)]
    scores_by_set = by_set('top-1', right, Mixture(both['sets']), (3, 15))
    for number, name in enumerate('ab'):
        results = [bool(one) for one, place in zip(right, set_of_image) if place == number]
        assert scores_by_set[f'top-1, {name}'] == pytest.approx(100 * sum(results) / len(results))


def test_map_of_several_sets_is_colored_by_set(places):
    roots = [str(places / 'c'), str(places / 'b.tar')]
    data = dataset_of(roots, None)
    names = [name_of(data, at) for at in range(len(data))]
    classes, labels = by_class(data, range(len(data)), names)
    assert classes == roots and labels.tolist() == [0] * 9 + [1] * 14
    assert names[0] == f'{places}/c/c00.png' and names[9] == f'{places}/b.tar/bee/b00'

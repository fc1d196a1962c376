"""Compare the FLOPs of rows, and scores at equal cost, with calculations by hand."""

import json
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from scipy.stats import t

from mmairl.data.sampler import seed_of
from mmairl.engine import run
from mmairl.engine.run import register
from mmairl.evaluation.identity import key_of
from mmairl.study.cost import BytesMoved, cost, flops_per_image, work_per_image
from mmairl.study.record_start import RecordStart
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row
from mmairl.study.statistics.equal_cost import at_equal_cost, costs


def network(symmetric: bool, queue: int | None) -> Config:
    """Return the config of a network with two convolutions and a linear layer, on views of 8 pixels."""
    register()
    view = [dict(type='RandomResizedCrop', size=8), dict(type='RandomFlip', p=0.5)]
    head = dict(type='ContrastiveHead' if queue else 'RegressionHead')
    model = dict(
        type='Siamese', backbone=dict(type='Small', width=11), symmetric=symmetric, head=head,
        projector=dict(type='MLPNeck', in_channels=22, hidden_channels=None, out_channels=5),
        queue=queue and dict(type='KeyQueue', length=queue), data_preprocessor=dict(type='BaseDataPreprocessor'),
    )  # fmt: skip
    wrapped = dict(type='Part', dataset=dict(type='Shapes', views=[view, view]))
    return Config(dict(model=model, train_dataloader=dict(dataset=wrapped), total_batch_size=4))


def test_flops_are_those_counted_by_hand():
    """Strides of 2 leave 4 x 4 and then 2 x 2 positions. The first convolution needs no gradient of its input."""
    first, second, linear = (2 * count for count in (16 * 11 * 27, 4 * 22 * 99, 22 * 5))
    student, teacher = 2 * first + 3 * second + 3 * linear, first + second + linear
    assert flops_per_image(network(True, None)) == 2 * student + 2 * teacher
    # The loss has one direction and 20 negatives. These negatives add a product of 5 x 20 in the
    # forward pass, and another one for the gradient of the query.
    assert flops_per_image(network(False, 20)) == student + teacher + 2 * 2 * 5 * 20
    sizeless = network(True, None)
    sizeless.train_dataloader.dataset.dataset.views = [[dict(type='RandomFlip', p=0.5)]] * 2
    assert flops_per_image(sizeless) is None


def test_views_move_no_bytes():
    x, weight = torch.empty(6, 10, device='meta'), torch.empty(10, 20, device='meta')
    with BytesMoved() as moved:
        product = x @ weight  # This moves 60 + 200 + 120 elements
        # `cat` reads 240 elements and writes 240, and so does `relu_`.
        torch.cat([product.view(120), product.flatten()]).relu_()
        torch.empty(1000, device='meta')
    assert moved.total == 4 * (380 + 480 + 480)


def row(name: str, on: str | None, flops: int, images: int, scores: list[float], **changes) -> dict:
    runs = [
        dict(seed=s, state='done', images_seen=images, device_seconds=10.0 + s, scores=dict(knn=value), start=None)
        for s, value in enumerate(scores)
    ]
    return dict(name=name, on=on, flops_per_image=flops, runs=runs, **changes)


def test_equal_cost_interpolates_between_checkpoints():
    """A run of `dear` costs 2 400 FLOPs. Its checkpoints after 600 and 1 200 FLOPs (`quarter`, `half`) were also measured.

    A run of `cheap` costs 900 FLOPs.
    """
    part = dict(of='dear', along=True)
    rows = [
        row('cheap', None, 9, 100, [50.0, 52.0, 57.0]),
        row('dear', 'cheap', 12, 200, [70.0, 72.0, 74.0]),
        row('quarter', 'dear', 12, 50, [40.0, 44.0, 42.0], **part),
        row('half', 'dear', 12, 100, [60.0, 62.0, 70.0], **part),
    ]
    for checkpoint in rows[2:]:
        for one in checkpoint['runs']:
            one['device_seconds'] = 0.0
    study = dict(rows=rows)
    (entry,) = at_equal_cost(study, 'knn')
    # At 900 FLOPs, the interpolated scores of `dear` are 50, 53 and 56, with a variance of 9. The
    # scores of `cheap` have a variance of 13.
    half = t.ppf(0.975, 2) * ((9 + 13) / 3) ** 0.5
    assert (entry['row'], entry['on'], entry['flops']) == ('dear', 'cheap', 900) and entry['ratio'] == 2400 / 900
    assert entry['scores'] == [53.0, 53.0] and entry['estimate'] == 0
    assert [entry['low'], entry['high']] == pytest.approx([-half, half])
    # With these scores, the two runs count as collapsed, since k-NN on raw pixels (`floor`) scores
    # as much.
    for one in (rows[0]['runs'][2], rows[1]['runs'][0]):
        one['scores']['knn'] = 10.0
    floor = row('pixels', None, None, 0, [10.0], untrained='pixels')
    learned = at_equal_cost(dict(rows=[*rows, floor]), 'knn')[0]
    assert learned['scores'] == [(44 + 62 + 42 + 70) / 4, 51.0]
    # Two of the three runs of `dear` are copies of other runs, so their training took no time.
    for seconds, one in zip((11.0, 0.0, 0.0), rows[1]['runs']):
        one['device_seconds'] = seconds
    spent = costs(study)
    assert spent['dear']['device_seconds'] == 11
    assert spent['quarter'] == dict(images=50, flops=600, device_seconds=11 / 4)
    # Without `quarter`, no checkpoint of `dear` costs less than `cheap`, so there is no estimate.
    rows.pop(2)
    assert 'estimate' not in at_equal_cost(study, 'knn')[0]
    # Rows of equal cost have no entry.
    rows[1].update(flops_per_image=4.5)
    assert at_equal_cost(study, 'knn') == []
    rows[1].update(flops_per_image=None)
    assert at_equal_cost(study, 'knn') == [] and costs(study)['dear']['flops'] is None


def test_seconds_count_earlier_starts_of_the_run(monkeypatch):
    now = iter([1000.0, 1007.0, 5000.0, 5002.0, 6000.0, 6001.0])
    monkeypatch.setattr('mmairl.study.record_start.time', SimpleNamespace(perf_counter=lambda: next(now)))
    saved, first = {}, RecordStart('start.json')
    first.before_save_checkpoint(None, saved)
    assert saved == dict(seconds=7.0)
    for resume, seconds in ((True, 9.0), (False, 1.0)):
        hook = RecordStart('start.json')
        hook.after_load_checkpoint(SimpleNamespace(cfg=dict(resume=resume)), saved)
        assert hook.seconds == seconds


def test_run_records_the_order_of_its_images(tmp_path, toy_config):
    recorded = dict(type='RecordStart', path=str(tmp_path / 'start.json'))
    cfg = toy_config(width=8, steps=1, batch=16, custom_hooks=[recorded], **{'train_dataloader.sampler.shuffle': True})
    cfg.randomness.seed = 3
    sampler = run.train(cfg).train_dataloader.sampler
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed_of(sampler.seed, 0))).tolist()
    assert json.loads((tmp_path / 'start.json').read_text())['order'] == key_of({'images': order})


def test_planned_hours_follow_the_work_of_the_network():
    scale, rows = read_scale('in1k'), ['architectures/byol_r18_100e.py', 'architectures/byol_r101_100e.py']
    small, large = (resolve(Row('', row), scale) for row in rows)
    works = [work_per_image(cfg) for cfg in (large, small)]
    by_flops, by_bytes = works[0].flops / works[1].flops, works[0].bytes / works[1].bytes
    ratio = cost(large, scale).hours / cost(small, scale).hours
    # ResNet-101 moves more bytes per FLOP than ResNet-18. The ratio of hours is therefore between
    # the ratios of FLOPs and of bytes.
    assert 3 < by_flops < ratio < by_bytes < 10
    plus = cost(resolve(Row('', 'mocov2plus_r50_200e.py'), scale), scale)
    assert plus.hours == pytest.approx(200 * scale.images / scale.rate / 3600)

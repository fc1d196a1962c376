"""`load_from` without `resume` takes weights and nothing else: the run is its own from the first step."""

import pytest
import resuming
import torch

from mmairl.engine.checkpoint import load_checkpoint


@pytest.fixture(scope='module')
def other(tmp_path_factory):
    """The end of another run."""
    return resuming.run(resuming.config('views_of_the_batch', str(tmp_path_factory.mktemp('other')), leave_at=5))


def started(other, folder, **options):
    cfg = resuming.config('views_of_the_batch', str(folder), leave_at=1, batch=options.pop('batch', 8))
    cfg.load_from = str(other)
    cfg.custom_hooks[0].lr = options.pop('lr', 0.5)
    cfg.merge_from_dict(options)
    cfg.default_hooks.checkpoint.interval = 1
    resuming.run(cfg)
    return load_checkpoint(folder / 'iter_1.pth')


def test_the_seed_is_the_run_s_own(other, tmp_path):
    before = load_checkpoint(other)
    one, two = (started(other, tmp_path / str(seed), **{'randomness.seed': seed}) for seed in (11, 12))
    assert len({run['place']['seed'] for run in (before, one, two)}) == 3
    assert not torch.equal(one['random_states'][0]['torch'], two['random_states'][0]['torch'])
    key = 'backbone.conv1.weight'
    assert torch.allclose(one['state_dict'][key], before['state_dict'][key], atol=0.01), (
        "the weights are the other run's"
    )
    assert not torch.equal(one['state_dict'][key], two['state_dict'][key]), 'other images in the first step'


def test_another_batch_is_no_error(other, tmp_path):
    assert started(other, tmp_path, batch=4)['place']['images_per_step'] == 4


def test_the_probe_begins_anew(other, tmp_path):
    """At rate 0 it stays where it began."""
    weight = started(other, tmp_path, lr=0.0)['online_probe']['probe']['weight']
    start = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(weight, 0.01 * start)

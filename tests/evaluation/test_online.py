"""Hooks that evaluate features during training. Their scores are right, and they do not change the student."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from harness.errors import raises_code
from mmengine.logging import MessageHub
from torch.utils._pytree import tree_leaves

from mmairl.engine import run
from mmairl.evaluation.online import OnlineKNNHook, OnlineProbeHook
from mmairl.evaluation.protocol import evaluate
from mmairl.registry import DATASETS

PROBE = dict(type='OnlineProbeHook', classes=4, lr=0.5)


def trained(cfg) -> tuple:
    runner = run.train(cfg)
    return runner, {key: value.clone() for key, value in runner.model.state_dict().items()}


def test_probe_is_plain_sgd_on_detached_features():
    hook = OnlineProbeHook(classes=3, lr=0.7)
    rows, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    hook._build(rows)
    weight, bias = (p.detach().clone().requires_grad_() for p in hook.probe.parameters())
    speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for _ in range(4):
        hook._step(rows, labels, 0.0)
        gradients = torch.autograd.grad(F.cross_entropy(rows @ weight.T + bias, labels), [weight, bias])
        for p, v, g in zip((weight, bias), speed, gradients):
            v.mul_(0.9).add_(g)
            p.data -= 0.7 * v
    torch.testing.assert_close(hook.probe.weight, weight)
    torch.testing.assert_close(hook.probe.bias, bias)


def test_unlabeled_batch_does_not_change_the_probe():
    hook = OnlineProbeHook(classes=3, lr=0.7)
    rows = torch.randn(6, 5)
    hook._build(rows)
    before = hook.probe.weight.clone()
    assert hook._step(rows, torch.full((6,), -1), 0.0) == 0
    assert torch.equal(hook.probe.weight, before)
    # A batch with non-finite values must change nothing.
    hook._step(rows * torch.nan, torch.zeros(6, dtype=torch.long), 0.0)
    assert torch.equal(hook.probe.weight, before)


def test_unlabeled_first_batch_builds_the_probe():
    hook = OnlineProbeHook(classes=3)
    hook.features = torch.randn(6, 5)
    labels = torch.full((6,), -1)
    dataset = SimpleNamespace(labels=torch.tensor([-1, -1, 2]))
    loader, hub = SimpleNamespace(dataset=dataset), MessageHub('probe')
    runner = SimpleNamespace(train_dataloader=loader, message_hub=hub, iter=0, max_iters=4)
    hook.after_train_iter(runner, 0, dict(data_samples=dict(label=labels)))
    assert hook.probe is not None
    hook.probe, hook.features, dataset.labels = None, torch.randn(6, 5), labels
    with raises_code('no-labels'):
        hook.after_train_iter(runner, 0, dict(data_samples=dict(label=labels)))


def test_rates_follow_the_reference():
    steps, cosine = OnlineProbeHook(3), OnlineProbeHook(3, lr=0.2, schedule='cosine')
    assert [steps.lr_at(at) for at in (0, 0.59, 0.6, 0.8)] == pytest.approx([30, 30, 3, 0.3])
    assert cosine.lr_at(0.25) == pytest.approx(0.1 * (1 + math.cos(math.pi / 4)))


def test_saved_probe_is_a_copy(toy_config):
    """Checkpoints are written in the background, so the next step must not change their content."""
    runner, _ = trained(toy_config(width=8, custom_hooks=[PROBE]))
    probe = next(hook for hook in runner.hooks if isinstance(hook, OnlineProbeHook))
    live = [
        *runner.model.state_dict().values(),
        *probe.probe.parameters(),
        runner.message_hub.state_dict()['resumed_keys'],
    ]
    live += [value for state in probe.optimizer.state.values() for value in state.values()]
    leaves = tree_leaves(runner.snapshot({}, True, True), is_leaf=lambda leaf: any(leaf is one for one in live))
    places = {one.data_ptr() for one in live if isinstance(one, torch.Tensor) and one.numel()}
    assert len(leaves) > 200 and not any(leaf is one for leaf in leaves for one in live)
    assert not places & {leaf.data_ptr() for leaf in leaves if isinstance(leaf, torch.Tensor)}


@pytest.mark.parametrize('classes, code', [(1, 'few-classes'), (3, 'label-out-of-range')])
def test_probe_rejects_wrong_number_of_classes(toy_config, classes, code):
    with raises_code(code):
        run.train(toy_config(width=8, custom_hooks=[{**PROBE, 'classes': classes}]))


def test_hooks_leave_training_bit_identical(toy_config, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))

    def config(name: str, *hooks: dict):
        cfg = watched(toy_config, tmp_path / name, *hooks)
        cfg.evaluation.test = dict(type='Shapes', split='val', count=48, size=32)
        cfg.default_hooks.checkpoint = None
        return cfg

    _, without = trained(config('a'))
    runner, with_hooks = trained(config('b', PROBE, dict(type='OnlineKNNHook', interval=1, k=5)))
    assert all(torch.equal(without[key], with_hooks[key]) for key in without)
    assert 'train/probe_accuracy' in runner.message_hub.log_scalars
    scores, _ = runner.message_hub.get_scalar('train/knn_accuracy').data
    assert len(scores) == 2 and all(0 <= score <= 100 for score in scores)


class Unread(torch.utils.data.Dataset):
    """Test images that fail the test if they are opened."""

    def __init__(self) -> None:
        pytest.fail('the test images were opened')


@pytest.fixture(autouse=True)
def labels(monkeypatch):
    labels = property(lambda dataset: torch.arange(len(dataset)) % 4)
    monkeypatch.setattr(DATASETS.get('FixedViews'), 'labels', labels, raising=False)


def watched(toy_config, folder, *hooks: dict, **checkpoint):
    cfg = toy_config(width=8, work_dir=str(folder), custom_hooks=list(hooks))
    cfg.train_cfg.max_iters = 6  # This is two epochs
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    cfg.evaluation = dict(train=dict(type='Shapes', count=48, size=32), test=dict(type='Unread'))
    cfg.default_hooks.checkpoint.update(checkpoint)
    return cfg


@pytest.mark.parametrize(
    'hook, score',
    [
        (dict(type='OnlineKNNHook', interval=1, k=5), 'knn_accuracy'),
        (dict(PROBE, held_out=0.3), 'probe_held_out_accuracy'),
    ],
)
def test_best_checkpoint_is_chosen_without_test_images(toy_config, tmp_path, monkeypatch, hook, score):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setitem(DATASETS.module_dict, 'Unread', Unread)
    runner, weights = trained(watched(toy_config, tmp_path / 'run', hook, save_best=score, rule='greater'))
    scores, _ = runner.message_hub.get_scalar(f'train/{score}').data
    (best,) = (tmp_path / 'run').glob(f'best_{score}_*.pth')
    saved = torch.load(best, weights_only=True)
    assert saved['message_hub']['runtime_info']['best_score'] == pytest.approx(max(scores))
    if scores[-1] > scores[0]:
        assert all(torch.equal(saved['state_dict'][key], weights[key]) for key in weights)


def test_probe_does_not_learn_from_held_out_images(toy_config, tmp_path):
    runner, _ = trained(watched(toy_config, tmp_path / 'run', dict(PROBE, held_out=0.5)))
    probe = next(hook for hook in runner.hooks if isinstance(hook, OnlineProbeHook))
    assert 0.3 < probe.held.float().mean() < 0.7
    before = probe.probe.weight.detach().clone()
    probe.optimizer.state.clear()
    samples = dict(label=torch.zeros(4, dtype=torch.long), index=probe.held.nonzero().flatten()[:4])
    probe.features = torch.randn(4, before.shape[1])
    probe.after_train_iter(runner, 0, dict(data_samples=samples))
    assert torch.equal(probe.probe.weight, before)


def test_groups_are_only_required_of_labeled_images(tmp_path):
    table = tmp_path / 'groups.csv'
    table.write_text('file,patient\n' + ''.join(f'{row},{row // 4}\n' for row in range(0, 40, 2)))
    labels = torch.full((40,), -1)
    labels[::2] = torch.arange(20) % 2
    dataset = type('Partly', (), dict(labels=labels, member=staticmethod(str), __len__=lambda _: 40))()
    held = OnlineProbeHook(2, held_out=0.3).hold_out(dataset, dict(csv=str(table), column='patient'))
    assert 0 < held.sum() <= 8
    assert not held[1::2].any(), 'unlabeled images are held out'
    pairs = held[::2].view(10, 2)
    assert pairs[:, 0].equal(pairs[:, 1]), 'a patient is in both parts'


def test_measuring_on_test_images_is_reported(toy_config, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    cfg = watched(toy_config, tmp_path / 'run', dict(type='OnlineKNNHook', interval=1, k=5, images='test'))
    cfg.evaluation.test = dict(type='Shapes', split='val', count=48, size=32)
    runner, _ = trained(cfg)
    assert len(runner.message_hub.get_scalar('train/knn_accuracy_on_test_images').data[0]) == 2
    last = (tmp_path / 'run/last_checkpoint').read_text()
    result = evaluate(runner.cfg, 'knn', last)
    assert result.subject.endswith('whose run watched the test images')


def test_unknown_images_are_an_error():
    with raises_code('unknown-images'):
        OnlineKNNHook(images='all')

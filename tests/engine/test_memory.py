"""What a GPU must hold: closed forms, a counted step against a real one, and strategies against what two processes held."""

from pathlib import Path

import memory_two_processes as two
import pytest
import torch
from torch import nn

from mmairl.configs import load_config
from mmairl.engine import memory
from mmairl.engine.memory import LiveBytes, Network, activations, build, count, fullest_moment, shares
from mmairl.errors import UserError
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'
P, T, B, BUCKET = 1000, 800, 64, 50_000_000


def sums(optimizer: str, gpus: int = 4, **options) -> dict[str, tuple]:
    found = shares(Network(P, T, B), optimizer, gpus, **options)
    return {name: (m.parameters, m.gradients, m.optimizer, m.teacher, m.exchange) for name, m in found.items()}


def test_what_each_strategy_divides():
    """Parameters, gradients, optimizer, teacher, exchange: four bytes each, eight of Adam's and a master of ZeRO's."""
    assert sums('AdamW') == {
        'DDP': (4000, 4000, 8000, 3200, 0),
        'ZeRO-1': (4000, 4000, 3000, 3200, 4 * BUCKET),
        'ZeRO-2': (4000, 1000, 3000, 3200, 4 * BUCKET),
        'ZeRO-3': (1000, 1000, 3000, 800, 4 * BUCKET),
    }
    assert (
        [parts[2] for parts in sums('SGD').values()]
        == [4000, 2000, 2000, 2000]
        == [p[2] for p in sums('LARS').values()]
    )


def test_weights_in_half_the_width_have_masters():
    """The student's stand in the optimizer's row; the teacher's are shards like them."""
    halved = sums('AdamW', bf16_weights=True)
    assert halved['ZeRO-1'] == (2000, 2000, 3000, 2000 + 1000, 2 * BUCKET)
    assert halved['ZeRO-2'] == (2000, 500, 3000, 2000 + 1000, 2 * BUCKET)
    assert halved['ZeRO-3'] == (500, 500, 3000, 400 + 1000, 2 * BUCKET)


def test_an_optimizer_of_unknown_state_is_refused():
    with pytest.raises(UserError, match="how much 'Lion' keeps is not known"):
        shares(Network(P, T, B), 'Lion', 8)


def test_live_bytes_are_those_of_tensors_that_still_live():
    with LiveBytes() as live:
        one = torch.zeros(100)
        view = one[10:]
        two = one + 1
        assert live.now == 800
        del one
        assert live.now == 800, 'its view keeps it'
        del view
        assert (live.now, live.peak) == (400, 800)
        del two
    assert live.now == 0


class Chain(nn.Module):
    """Linear, ReLU, linear: small enough to count by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)

    def forward(self, images, mode):
        return dict(loss=self.two(self.one(images[0]).relu()).square().sum())


def test_a_step_counted_by_hand():
    """5 rows: input 8 wide, then 16 before and after the ReLU, 4, 4 squared: all are alive when the loss is.

    The loss and the first gradient come on top, of one number each; then gradients replace what nothing needs any more.
    """
    images = [torch.randn(5, 8)]
    peak = fullest_moment(Chain(), images)
    assert peak >= 4 * 5 * (8 + 16 + 16 + 4) and peak <= 4 * (5 * (8 + 16 + 16 + 4 + 4 + 4 + 16 + 16) + 64 + 4)


CASES = {
    'ResNet': {},
    'ResNet, blocks computed again': {'fast': dict(checkpointing=True)},
    'ViT': {'vit': True},
    'ViT, blocks computed again': {'vit': True, 'fast': dict(checkpointing=True)},
}


@pytest.mark.parametrize('half', [False, True], ids=['float32', 'bfloat16'])
@pytest.mark.parametrize('case', CASES)
def test_a_step_without_numbers_takes_what_a_real_one_takes(toy_config, case, half):
    options = dict(CASES[case])
    cfg = two.config() if options.pop('vit', False) else toy_config('mocov2plus_r50_200e.py')
    cfg.merge_from_dict(options)
    real = memory.make_fast(MODELS.build(cfg.model), cfg.get('fast'))
    measured = fullest_moment(real, [torch.randn(6, 3, 32, 32) for _ in range(2)], half)
    predicted = activations(build(cfg), views=2, batch=6, size=32, half=half)
    # in bfloat16 a real batch norm on a CPU keeps its statistics in another width than torch says of it
    assert predicted == pytest.approx(measured, rel=1e-3 if half else 0)


@pytest.mark.parametrize(
    'name,millions',
    [('mocov2plus_vit_l16_300e', 303.3), ('byol_vit_l16_300e', 303.3), ('byol_lars_r200_2x_1000e', 250.1)],
)
def test_the_large_networks_are_built_without_storage_and_as_large_as_published(name, millions):
    model = build(load_config(str(CONFIGS / f'large/{name}.py')))
    assert all(parameter.is_meta for name, parameter in model.named_parameters() if parameter.numel() > 1e6)
    backbone = sum(parameter.numel() for parameter in model.backbone.parameters())
    assert round(backbone / 1e6, 1) == millions
    sizes = count(model)
    assert sizes.trained - sizes.teacher == sum(p.numel() for p in model.predictor.parameters())


def test_the_command_prints_the_table(capsys, monkeypatch):
    words = ['memory', str(CONFIGS / 'demo/mocov2plus_shapes.py'), '--gpus', '2', '--size', '32']
    monkeypatch.setattr('sys.argv', words)
    memory.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith('0.8 million parameters, 0.8 of the teacher; SGD; 2 views of 128 images of 32 pixels')
    rows = {line.split()[0]: line.split()[1:] for line in said[2:]}
    assert list(rows) == [
        'parameters',
        'gradients',
        'optimizer',
        'teacher',
        'buffers',
        'exchange',
        'activations',
        'total',
    ]
    assert float(rows['activations'][0]) > 0 and len(rows['total']) == 4


@pytest.fixture(scope='module')
def held(tmp_path_factory, run_processes) -> dict[str, dict[str, int]]:
    folder = tmp_path_factory.mktemp('memory')
    run_processes(2, two.__file__, folder / 'held.pth', folder)
    return torch.load(folder / 'held.pth', weights_only=True)


def test_ddp_holds_what_was_predicted(held):
    predicted = shares(count(build(two.config())), 'AdamW', 2)['DDP'].total
    step = activations(build(two.config()), views=2, batch=two.BATCH, size=32)
    assert held['DDP']['kept'] == pytest.approx(predicted, rel=0.01)
    assert held['DDP']['peak'] == pytest.approx(predicted + step, rel=0.01)


def test_a_prediction_for_zero_is_no_more_than_what_is_held(held):
    """DeepSpeed holds more than the shards: what the documentation measures beside the prediction."""
    model, step = count(build(two.config())), activations(build(two.config()), views=2, batch=two.BATCH, size=32)
    for stage, least in (('ZeRO-1', 0.9), ('ZeRO-2', 0.88), ('ZeRO-3', 0.75)):
        predicted = shares(model, 'AdamW', 2)[stage].total + step
        assert least < predicted / held[stage]['peak'] <= 1, stage

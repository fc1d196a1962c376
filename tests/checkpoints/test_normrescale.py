"""NormRescale gives each tensor the norm of the same tensor in an anchor checkpoint, and keeps the directions."""

from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from mmengine.model import initialize

import mmairl.models  # noqa: F401  registers mmpretrain's backbones
from mmairl.checkpoints.normrescale import left_alone, normrescale
from mmairl.checkpoints.norms import is_statistic
from mmairl.checkpoints.read import read_backbone
from mmairl.registry import MODELS
from mmairl.report import figures
from mmairl.report.figures import norm_curves

SMALL = dict(type='mmpretrain.ResNet', depth=18, base_channels=4, stem_channels=4)


def weights(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Return the tensors of a narrow ResNet-18. All floating-point tensors are random, including biases and statistics."""
    generator = torch.Generator().manual_seed(seed)
    state = MODELS.build(SMALL).state_dict()
    return {
        key: scale * torch.rand(value.shape, generator=generator).sub(0.3)
        if value.is_floating_point()
        else value + seed
        for key, value in state.items()
    }


def assert_rescaled(new: dict, source: dict, anchor: dict) -> None:
    for key, value in new.items():
        if is_statistic(key):
            assert torch.equal(value, source[key]), key
        else:
            assert value.double().norm().item() == pytest.approx(anchor[key].double().norm().item(), rel=1e-6), key
            directions = (tensor.double().flatten() for tensor in (value, source[key]))
            assert torch.cosine_similarity(*directions, dim=0).item() == pytest.approx(1, abs=1e-6), key
            assert not torch.equal(value, source[key])


def test_norms_match_the_anchor_and_directions_stay():
    source, anchor = weights(1, scale=9), weights(2)
    new, rows = normrescale(source, anchor)
    assert new.keys() == source.keys()
    assert_rescaled(new, source, anchor)
    assert not left_alone(rows) and len(rows) == sum(not is_statistic(key) for key in source)
    twice, _ = normrescale(new, anchor)
    assert all(torch.allclose(twice[key].double(), new[key].double(), rtol=3e-7, atol=0) for key in new)


def test_channels_and_statistics_can_be_rescaled():
    source, anchor = weights(1), weights(2)
    source['conv1.weight'][3] = 0
    new, _ = normrescale(source, anchor, per='channel', statistics='rescale')
    norms = anchor['conv1.weight'].double().flatten(1).norm(dim=1)
    norms[3] = 0
    assert torch.allclose(new['conv1.weight'].double().flatten(1).norm(dim=1), norms, rtol=1e-6)
    norm = new['bn1.running_mean'].double().norm().item()
    assert norm == pytest.approx(anchor['bn1.running_mean'].double().norm().item(), rel=1e-6)
    assert torch.equal(new['bn1.num_batches_tracked'], source['bn1.num_batches_tracked'])


def test_skipped_tensors_are_named_with_a_reason():
    source = dict(a=torch.ones(3), b=torch.ones(2), c=torch.zeros(2), d=torch.ones(2), e=torch.ones(2))
    source |= dict(f=torch.tensor([torch.nan]), g=torch.tensor([168, 2]))
    anchor = dict(b=torch.ones(3), c=torch.ones(2), d=torch.zeros(2), e=torch.full((2,), 2.0), f=torch.ones(1))
    new, rows = normrescale(source, anchor)
    assert all(torch.equal(new[key], source[key]) for key in 'abcdg') and new['e'].tolist() == [2, 2]
    message = left_alone(rows)
    assert message.startswith('6 of 7 tensors')
    for part in (
        'not in the anchor: a',
        'differs',
        'zero norm: c',
        'norm in the anchor: d',
        'not finite: f',
        'numbers: g',
    ):
        assert part in message
    assert torch.equal(normrescale(source, constant=0.1)[0]['g'], source['g'])


def test_options_that_do_not_fit_are_errors():
    for arguments, code in (
        ({}, 'no-anchor'),
        (dict(anchor={}, constant=0.1), 'no-anchor'),
        (dict(anchor={}, per='x'), 'unknown-option'),
        (dict(constant=0.1, exact=True), 'no-exact-kernel'),
        (dict(constant=0.1, exact=True, statistics='rescale'), 'exact-statistics'),
    ):
        with raises_code(code):
            normrescale(dict(a=torch.ones(2)), **arguments)


def save_ours(path: Path, source: dict, **more) -> Path:
    state = {f'backbone.{key}': value for key, value in source.items()}
    state |= {f'teacher.backbone.{key}': value * 2 for key, value in source.items()}
    state |= {'projector.0.weight': torch.randn(4, 4), 'queue.keys': torch.randn(8, 4)}
    torch.save(dict(meta=dict(epoch=3), state_dict=state, optimizer=dict(state={0: torch.ones(2)}), **more), path)
    return path


def test_tool_changes_the_student_and_writes_weights(tmp_path, run_tool, capsys):
    source, anchor = weights(1, scale=9), weights(2)
    lars = save_ours(tmp_path / 'lars.pth', source)
    torch.save(dict(model={f'module.online_encoder.{k}': v for k, v in anchor.items()}), tmp_path / 'sgd.pth')
    run_tool('tools/normrescale.py', lars, tmp_path / 'out.pth', '--anchor', tmp_path / 'sgd.pth', '--strict')
    assert 'layer1.0.conv1.weight' in capsys.readouterr().out
    before, after = torch.load(lars), torch.load(tmp_path / 'out.pth')
    assert after['state_dict'].keys() == before['state_dict'].keys()
    assert_rescaled(read_backbone(tmp_path / 'out.pth').weights, source, anchor)
    for key, value in before['state_dict'].items():
        if not key.startswith('backbone.'):
            assert torch.equal(after['state_dict'][key], value), key
    assert after.keys() == {'meta', 'state_dict'} and after['meta']['epoch'] == 3
    assert 'sgd.pth' in after['meta']['mmairl_origin']['normrescale']
    for kind in ('png', 'svg', 'csv'):
        assert (tmp_path / f'out_norms.{kind}').stat().st_size > 500


@pytest.mark.parametrize('wrap', [dict, lambda state: dict(meta=[1, 2], state_dict=state)])
def test_tool_accepts_files_without_meta(tmp_path, run_tool, wrap):
    state = {f'backbone.{key}': value for key, value in weights(1).items()}
    torch.save(wrap(state), tmp_path / 'a.pth')
    run_tool('tools/normrescale.py', tmp_path / 'a.pth', tmp_path / 'b.pth', '--constant', '0.5')
    content = torch.load(tmp_path / 'b.pth')
    key = 'backbone.conv1.weight'
    assert torch.equal(content['state_dict'][key], state[key] / 2) and content['meta'].keys() == {'mmairl_origin'}


def test_tool_reads_teachers_and_checks_its_input(tmp_path, run_tool, capsys):
    source = weights(1)
    lars = save_ours(tmp_path / 'lars.pth', source)
    run_tool('tools/normrescale.py', lars, tmp_path / 'out.pth', '--constant', '0.1', '--part', 'teacher')
    assert torch.load(tmp_path / 'out.pth')['state_dict'].keys() == {f'backbone.{key}' for key in source}
    for key, value in read_backbone(tmp_path / 'out.pth').weights.items():
        teacher = source[key] * 2
        assert torch.equal(value, teacher if is_statistic(key) else (teacher.double() * 0.1).float()), key
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/normrescale.py', tmp_path / 'out.pth', tmp_path / 'twice.pth', '--constant', '0.1')
    assert 'is already rescaled' in capsys.readouterr().err and not (tmp_path / 'twice.pth').exists()
    other = {**weights(2), 'conv1.weight': torch.ones(2)}
    torch.save({f'backbone.{key}': value for key, value in other.items()}, tmp_path / 'other.pth')
    command = ('tools/normrescale.py', lars, tmp_path / 'loose.pth', '--anchor', tmp_path / 'other.pth')
    with pytest.raises(SystemExit, match='2'):
        run_tool(*command, '--strict')
    assert '1 of 60 tensors' in capsys.readouterr().err and not (tmp_path / 'loose.pth').exists()
    run_tool(*command)
    assert (tmp_path / 'loose.pth').exists()
    for name in ('lars', 'other'):
        (tmp_path / f'{name}_link.pth').hardlink_to(tmp_path / f'{name}.pth')
        with pytest.raises(SystemExit, match='2'):
            run_tool(*command[:2], tmp_path / f'{name}_link.pth', *command[3:])
        assert 'the output is also an input' in capsys.readouterr().err


def test_curves_of_files_with_the_same_name_are_separate(tmp_path, run_tool, monkeypatch):
    for run, seed in (('lars', 1), ('sgd', 2)):
        (tmp_path / run).mkdir()
        torch.save(weights(seed), tmp_path / run / 'epoch_2.pth')
    drawn = []
    monkeypatch.setattr(figures, 'norm_curves', lambda norms: drawn.extend(norms) or norm_curves(norms))
    paths = (tmp_path / run / 'epoch_2.pth' for run in ('lars', 'sgd'))
    run_tool('tools/normrescale.py', next(paths), tmp_path / 'out.pth', '--anchor', next(paths))
    assert drawn == ['epoch_2.pth', 'epoch_2.pth (anchor)', 'out.pth (rescaled)']


def test_weights_of_zero_are_an_error(tmp_path, run_tool, capsys):
    torch.save({key: torch.zeros_like(value) for key, value in weights(1).items()}, tmp_path / 'zero.pth')
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/normrescale.py', tmp_path / 'zero.pth', tmp_path / 'out.pth', '--constant', '0.1')
    error = capsys.readouterr().err
    assert 'no tensor can be rescaled (' in error and 'check the checkpoint' in error


def test_init_cfg_rescales_the_backbone(tmp_path):
    source, anchor = weights(1), weights(2)
    lars = save_ours(tmp_path / 'lars.pth', source)
    torch.save(anchor, tmp_path / 'anchor.pth')
    init = dict(type='mmairl.NormRescaled', checkpoint=str(lars), anchor=str(tmp_path / 'anchor.pth'))
    backbone = MODELS.build(dict(**SMALL, zero_init_residual=True, init_cfg=init))
    backbone.init_weights()
    assert_rescaled(backbone.state_dict(), source, anchor)
    other = {**anchor, 'conv1.weight': torch.ones(3, 3)}
    torch.save({f'backbone.{key}': value for key, value in other.items()}, tmp_path / 'anchor.pth')
    with raises_code('other-anchor'):
        initialize(backbone, init)


def test_init_cfg_reads_anchors_of_any_network(tmp_path):
    network = dict(type='mmpretrain.SwinTransformer', arch='tiny', img_size=32)
    for name in ('lars', 'anchor'):
        torch.save(MODELS.build(network).state_dict(), tmp_path / f'{name}.pth')
    files = {name: str(tmp_path / f'{name}.pth') for name in ('lars', 'anchor')}
    init = dict(type='mmairl.NormRescaled', checkpoint=files['lars'], anchor=files['anchor'])
    backbone = MODELS.build(dict(**network, init_cfg=init))
    backbone.init_weights()
    norms = [
        state['patch_embed.projection.weight'].norm() for state in (backbone.state_dict(), torch.load(files['anchor']))
    ]
    torch.testing.assert_close(*norms)


@pytest.mark.parametrize('depth', [18, 50])
def test_exact_form_keeps_the_function(depth):
    networks = [MODELS.build({**SMALL, 'depth': depth}).double() for _ in range(3)]
    for number, network in enumerate(networks[:2]):
        generator = torch.Generator().manual_seed(number)
        for value in filter(torch.is_floating_point, network.state_dict().values()):
            value.copy_((3 - 2 * number) * torch.rand(value.shape, generator=generator))
        network.eval()
    source, anchor = (network.state_dict() for network in networks[:2])
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0)).double()

    def change(**how) -> float:
        new, rows = normrescale(source, **how)
        networks[2].load_state_dict(new)
        networks[2].eval()
        assert not left_alone(rows)
        before, after = (network(images)[0] for network in (networks[0], networks[2]))
        return ((after - before).norm() / before.norm()).item()

    for how in (dict(anchor=anchor), dict(anchor=anchor, per='channel'), dict(constant=0.1)):
        assert change(**how, exact=True) < 1e-6 and change(**how) > 0.1
    new, _ = normrescale(source, anchor, exact=True)
    for key in ('conv1.weight', 'layer2.0.downsample.0.weight', 'layer3.1.conv2.weight'):
        assert new[key].norm().item() == pytest.approx(anchor[key].norm().item(), rel=1e-9)
    assert (new['layer1.0.bn1.bias'] / source['layer1.0.bn1.bias']).std() < 1e-9
    assert torch.equal(new['bn1.bias'], source['bn1.bias']), (
        'the bias changed, although the output of the stem enters two branches'
    )


def test_advice_states_growth_and_predicted_rate(tmp_path, run_tool, capsys):
    torch.manual_seed(0)
    network = MODELS.build(SMALL)
    network.init_weights()
    start = network.state_dict()
    for name, times in (('start', 1.0), ('long', 3.0)):
        scaled = {f'backbone.{key}': times * value if key.endswith('weight') else value for key, value in start.items()}
        torch.save(dict(state_dict=scaled), tmp_path / f'{name}.pth')
    run_tool('tools/normrescale.py', tmp_path / 'long.pth', '--advise', '--anchor', tmp_path / 'start.pth')
    output = capsys.readouterr().out
    assert (
        'initial value, which is typical of LARS' in output
        and '0.0011 is predicted' in output
        and 'rescale the network' in output
    )
    run_tool('tools/normrescale.py', tmp_path / 'start.pth', '--advise')
    assert 'initial value, which is not typical of LARS' in capsys.readouterr().out
    run_tool('tools/normrescale.py', tmp_path / 'start.pth', '--advise', '--anchor', tmp_path / 'long.pth')
    output = capsys.readouterr().out
    assert '0.09 is predicted' in output and 'on both sides of 0.09' in output and 'below' not in output
    without = {f'backbone.{key}': 0 * value if 'bn' in key else value for key, value in start.items()}
    torch.save(dict(state_dict=without), tmp_path / 'plain.pth')
    run_tool('tools/normrescale.py', tmp_path / 'long.pth', '--advise', '--anchor', tmp_path / 'plain.pth')
    assert 'no prediction' in capsys.readouterr().out
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/normrescale.py', tmp_path / 'long.pth', tmp_path / 'out.pth', '--advise')
    assert 'cannot be combined with OUT' in capsys.readouterr().err

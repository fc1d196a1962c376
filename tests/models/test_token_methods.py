"""iBOT and DINOv2: masks, losses on patches, KoLeo and Sinkhorn equal independent code, and so does a whole training step."""

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from harness.errors import raises_code
from harness.losses import assert_same, rows
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.models.heads.base import sinkhorn
from mmairl.models.heads.dino import DINOHead, koleo
from mmairl.models.masking import BlockMasking, patch_weights
from mmairl.models.siamese import Siamese
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs/methods'
STEPS = ['dino', 'ibot', 'ibot_separate', 'ibot_sinkhorn', 'ibot_koleo', 'dinov2']
TINY = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)


def build(name: str, **options: object) -> tuple[Siamese, dict]:
    """Return the model of a step from DINO to DINOv2 with a tiny ViT, and its config."""
    cfg = load_config(str(CONFIGS / f'{name}_vit_s16_800e.py'))
    cfg.model.backbone.update(arch=TINY, img_size=32, patch_size=8, drop_path_rate=0.0)
    for part in ('projector', 'patch_projector'):
        if cfg.model.get(part):
            cfg.model[part].update(
                in_channels=16, hidden_channels=24, out_channels=8, prototypes=12
            )
    cfg.model.head.prototypes = 12
    cfg.model.data_preprocessor = dict(type='BaseDataPreprocessor')
    cfg.merge_from_dict(options)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model.double(), cfg


def crops(images: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(images, 3, size, size, generator=generator, dtype=torch.float64)
        for size in (32, 32, 16, 16)
    ]


def masking(**options: object) -> BlockMasking:
    torch.manual_seed(4)
    return BlockMasking(nn.Conv2d(3, 8, 16, stride=16), **options)


def test_masks_are_unions_of_blocks_with_the_expected_share():
    masks = masking().draw(2, 400, 14, 14).flatten(0, 1).float()
    shares = masks.mean(dim=(1, 2))
    hidden = shares[shares > 0]
    assert abs(len(hidden) / 800 - 0.5) < 0.06
    # A mask stops early if ten blocks in a row do not fit, so the mean is slightly below 0.3.
    assert 0.27 < hidden.mean() < 0.31 and hidden.max() <= 0.5
    # In a union of blocks, most masked patches have a masked neighbor on the right.
    pairs = (masks[:, :, 1:] * masks[:, :, :-1]).sum() / masks[:, :, :-1].sum()
    assert pairs > 0.7


def test_strata_spread_the_shares_of_all_crops_evenly():
    masks = masking(strata=True, least=4, most=0.5).draw(2, 32, 14, 14).flatten(0, 1).float()
    shares = masks.mean(dim=(1, 2)).sort(descending=True).values
    assert (shares > 0).sum() == 32
    expected = torch.linspace(0.5, 0.1, 33)
    # A mask contains a whole number of patches, and it may stop a few patches early.
    assert ((shares[:32] - expected[:32]).abs() < 0.06).all()


def test_masks_depend_only_on_seed_batch_and_position(monkeypatch):
    """Two processes draw the masks of one process, image by image in turn, and so does a restored object."""
    whole = masking()
    first, second = whole.draw(2, 6, 7, 7), whole.draw(2, 6, 7, 7)
    assert not torch.equal(first, second)
    for rank in (0, 1):
        monkeypatch.setattr('mmairl.models.masking.get_world_size', lambda: 2)
        monkeypatch.setattr('mmairl.models.masking.get_rank', lambda rank=rank: rank)
        half = masking()
        assert torch.equal(half.draw(2, 3, 7, 7), first[:, rank::2])
        restored = masking()
        restored.load_state_dict(half.state_dict())
        assert torch.equal(restored.draw(2, 3, 7, 7), second[:, rank::2])


def test_masked_patches_are_replaced_before_positions():
    conv = nn.Conv2d(3, 8, 16, stride=16)
    masks = BlockMasking(conv)
    nn.init.normal_(masks.token)
    images = torch.randn(2, 3, 32, 32)
    plain = conv(images)
    hidden = torch.tensor([[[True, False], [False, False]], [[False, False], [True, True]]])
    with masks.hide(hidden):
        seen = conv(images)
    for image, row, column in torch.cartesian_prod(*[torch.arange(2)] * 3):
        expected = masks.token[0] if hidden[image, row, column] else plain[image, :, row, column]
        assert torch.equal(seen[image, :, row, column], expected)
    with raises_code('mask-size'), masks.hide(torch.zeros(2, 3, 3, dtype=torch.bool)):
        conv(images)


def test_patch_loss_equals_loops_over_crops():
    head = DINOHead(12).double()
    head.patch_center.mean.normal_()
    center = head.patch_center.mean.clone()
    masks = torch.rand(2, 3, 4, 4) < 0.3
    masks[1, 2] = False
    q, k = rows(2, int(masks.sum()), 12).values()
    expected, number = 0.0, 0
    for mask in masks.flatten(0, 1):
        total = 0.0
        for _ in range(int(mask.sum())):
            target = torch.softmax((k[number].detach() - center) / 0.04, dim=0)
            total = total - (target * torch.log_softmax(q[number] / 0.1, dim=0)).sum()
            number += 1
        expected = expected + total / max(1, int(mask.sum())) / 6
    assert_same(head.patch_loss(q, k.detach(), patch_weights(masks)), expected, [q], 1e-10)
    torch.testing.assert_close(head.patch_center.mean, 0.9 * center + 0.1 * k.mean(dim=0))


def knopp(scores: Tensor, temperature: float) -> Tensor:
    """Return the targets as DINOv2's formulas state: a matrix of prototypes by samples whose rows and columns are scaled."""
    q = torch.exp(scores / temperature).T
    prototypes, samples = q.shape
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(dim=1, keepdim=True) / prototypes
        q = q / q.sum(dim=0, keepdim=True) / samples
    return (q * samples).T


def nearest_distances(x: Tensor) -> Tensor:
    x = x / x.norm(dim=1, keepdim=True)
    others = [
        [math.inf if i == j else float((a - b).norm()) for j, b in enumerate(x)]
        for i, a in enumerate(x)
    ]
    nearest = [row.index(min(row)) for row in others]
    return torch.stack([(x[i] - x[j] + 1e-8).norm() + 1e-8 for i, j in enumerate(nearest)])


def test_sinkhorn_and_koleo_equal_their_formulas():
    scores = torch.randn(7, 5, dtype=torch.float64) / 4
    torch.testing.assert_close(
        sinkhorn(scores, 0.05, 3), knopp(scores, 0.05), atol=1e-12, rtol=1e-12
    )
    x = rows(1, 9)[0]
    assert_same(koleo(x), -nearest_distances(x).log().mean(), [x])


def test_losses_equal_those_of_lightly():
    loss = pytest.importorskip('lightly.loss')
    q, k = rows(4, 6, 12), {view: z.detach() for view, z in rows(2, 6, 12).items()}
    theirs = loss.DINOLoss(output_dim=12, teacher_temp=0.04, warmup_teacher_temp=0.04).double()
    ours = DINOHead(12).double()
    for _ in range(2):
        expected = theirs(list(k.values()), list(q.values()), epoch=0)
        assert_same(ours(q, k, None)['loss'], expected, list(q.values()), 1e-7)
    masks = torch.rand(5, 4, 4) < 0.3
    patches, targets = rows(2, int(masks.sum()), 12).values()
    theirs = loss.IBOTPatchLoss(output_dim=12).double()
    for _ in range(2):
        expected = theirs(targets.detach(), patches, masks)
        ours_now = ours.patch_loss(patches, targets.detach(), patch_weights(masks[None]))
        assert_same(ours_now, expected, [patches], 1e-6)
    x = rows(1, 9)[0]
    assert_same(koleo(x), loss.KoLeoLoss()(x), [x], 1e-9)


def vit(
    weights: dict[str, Tensor], prefix: str, images: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the tokens of the tiny ViT, written with plain functions."""

    def get(name: str) -> Tensor:
        return weights[prefix + name]

    x = F.conv2d(
        images, get('patch_embed.projection.weight'), get('patch_embed.projection.bias'), stride=8
    )
    if mask is not None:
        x = torch.where(mask[:, None], weights['masking.token'].view(-1, 1, 1), x)
    rows_of_patches = x.shape[2]
    x = x.flatten(2).transpose(1, 2)
    positions = get('pos_embed')
    if rows_of_patches != 4:
        # mmpretrain interpolates in float32.
        grid = positions[:, 1:].float().transpose(1, 2).unflatten(2, (4, 4))
        grid = F.interpolate(grid, (rows_of_patches,) * 2, mode='bicubic', align_corners=False)
        positions = torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)
    x = torch.cat([get('cls_token').expand(len(x), -1, -1), x], dim=1) + positions
    for layer in range(2):
        at = f'layers.{layer}.'
        y = F.layer_norm(x, (16,), get(at + 'ln1.weight'), get(at + 'ln1.bias'), 1e-6)
        y = F.linear(y, get(at + 'attn.qkv.weight'), get(at + 'attn.qkv.bias'))
        q, k, v = y.unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(2, 3) / 8**0.5).softmax(dim=3) @ v).transpose(1, 2).flatten(2)
        x = x + F.linear(y, get(at + 'attn.proj.weight'), get(at + 'attn.proj.bias'))
        y = F.layer_norm(x, (16,), get(at + 'ln2.weight'), get(at + 'ln2.bias'), 1e-6)
        y = F.gelu(F.linear(y, get(at + 'ffn.layers.0.0.weight'), get(at + 'ffn.layers.0.0.bias')))
        x = x + F.linear(y, get(at + 'ffn.layers.1.weight'), get(at + 'ffn.layers.1.bias'))
    return F.layer_norm(x, (16,), get('ln1.weight'), get('ln1.bias'), 1e-6)


def cosines(weights: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    """Return DINO's projector: three linear layers, and cosines with the prototypes."""
    for layer in (0, 2, 4):
        x = F.linear(
            x, weights[f'{prefix}mlp.{layer}.weight'], weights[f'{prefix}mlp.{layer}.bias']
        )
        x = x if layer == 4 else F.gelu(x)
    return F.normalize(x, dim=1) @ F.normalize(weights[f'{prefix}prototypes.weight'], dim=1).T


def plain_loss(
    weights: dict[str, Tensor], views: list[Tensor], masks: Tensor | None, last: bool
) -> Tensor:
    """Return the loss of the first or the last step from DINO to DINOv2, written as a loop over views and crops."""
    scores, targets, spread, hidden, visible = {}, {}, 0.0, [], []
    patch_prefix = 'patch_projector.' if last else 'projector.'
    for view, images in enumerate(views):
        mask = masks[view] if last and view < 2 else None
        tokens = vit(weights, 'backbone.', images, mask)
        scores[view] = cosines(weights, 'projector.', tokens[:, 0])
        if view > 1:
            continue
        with torch.no_grad():
            seen = vit(weights, 'teacher.backbone.', images)
            targets[view] = cosines(weights, 'teacher.projector.', seen[:, 0])
        if last:
            spread = spread - nearest_distances(tokens[:, 0]).log().mean()
            for image in range(len(images)):
                chosen = mask[image].flatten()
                hidden.append(cosines(weights, patch_prefix, tokens[image, 1:][chosen]))
                with torch.no_grad():
                    visible.append(
                        cosines(weights, f'teacher.{patch_prefix}', seen[image, 1:][chosen])
                    )
    joined = torch.cat([targets[0], targets[1]])
    assigned = knopp(joined, 0.04) if last else torch.softmax(joined / 0.04, dim=1)
    pairs = []
    for view, target in enumerate(assigned.chunk(2)):
        for other, score in scores.items():
            if other != view:
                pairs.append(-(target * torch.log_softmax(score / 0.1, dim=1)).sum(dim=1).mean())
    loss = sum(pairs) / len(pairs)
    if last:
        assigned = knopp(torch.cat(visible), 0.04).split([len(part) for part in visible])
        for target, score in zip(assigned, hidden):
            entropy = -(target * torch.log_softmax(score / 0.1, dim=1)).sum()
            loss = loss + entropy / max(1, len(score)) / len(hidden)
        loss = loss + 0.1 * spread
    return loss


@pytest.mark.parametrize('name', ['dino', 'dinov2'])
def test_step_equals_a_plain_loop(name):
    model, _ = build(name)
    weights = dict(model.named_parameters())
    torch.manual_seed(2)
    for key, weight in weights.items():
        if key.startswith('teacher.'):
            weight.data.add_(0.1 * torch.randn_like(weight))
    masks = copy.deepcopy(model.masking).draw(2, 6, 4, 4) if model.masking is not None else None
    assert masks is None or masks.any()
    loss = model(crops(), mode='loss')['loss']
    expected = plain_loss(weights, crops(), masks, last=name == 'dinov2')
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=1e-10)
    names = [key for key, weight in weights.items() if weight.requires_grad]
    student = [weights[key] for key in names]
    for key, one, other in zip(
        names, torch.autograd.grad(loss, student), torch.autograd.grad(expected, student)
    ):
        # mmpretrain also computes the gradients of interpolated positions in float32.
        close = 1e-7 if key == 'backbone.pos_embed' else 1e-10
        torch.testing.assert_close(one, other, atol=close, rtol=close, msg=key)


def test_each_step_adds_its_key():
    seen = []
    for name in STEPS:
        model, _ = build(name)
        results = model(crops(), mode='loss')
        own = model.patch_projector is not None
        seen.append(('patch_loss' in results, own, model.head.targets, 'koleo' in results))
    assert seen == [
        (False, False, 'center', False),
        (True, False, 'center', False),
        (True, True, 'center', False),
        (True, True, 'sinkhorn', False),
        (True, True, 'sinkhorn', True),
        (True, True, 'sinkhorn', True),
    ]


def test_resumed_run_draws_the_same_masks(toy_config, tmp_path):
    def trained(folder: str, **options: object) -> dict[str, Tensor]:
        cfg = toy_config('methods/dinov2_vit_s16_800e.py', steps=4, width=4, **options)
        cfg.work_dir = str(tmp_path / folder)
        state = run.train(cfg).model.state_dict()
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}

    whole = trained('whole')
    resumed = trained('resumed', resume=True, load_from=str(tmp_path / 'whole/iter_2.pth'))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())


def test_learning_rates_fall_with_depth():
    model, cfg = build('dinov2')
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    rates = {
        id(weight): group for group in wrapper.optimizer.param_groups for weight in group['params']
    }
    factors = {
        'backbone.patch_embed.projection.weight': 0.2 * 0.9**3,
        'backbone.cls_token': 0.9**3,
        'masking.token': 0.9**3,
        'backbone.layers.0.attn.qkv.weight': 0.9**2,
        'backbone.layers.1.ffn.layers.1.weight': 0.9,
        'backbone.ln1.weight': 1.0,
        'projector.prototypes.weight': 1.0,
    }
    for name, factor in factors.items():
        weight = model.get_parameter(name)
        group = rates[id(weight)]
        assert group['lr'] == pytest.approx(4e-3 * factor), name
        assert group.get('weight_decay', 0.04) == (0.04 if weight.ndim > 1 else 0.0), name


@pytest.mark.parametrize('per, sets', [('all', 1), ('part', 3), ('tensor', None)])
def test_gradients_are_clipped_per_set(per, sets):
    model, cfg = build('dinov2')
    cfg.optim_wrapper.clip_grad = dict(max_norm=1e-3, per=per)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    model(crops(), mode='loss')['loss'].backward()
    wrapper._clip_grad()
    parts: dict[object, list[Tensor]] = {}
    for name, weight in model.named_parameters():
        if weight.grad is not None and weight.grad.abs().sum() > 0:
            part = name.split('.')[0].replace('masking', 'backbone')
            parts.setdefault({'all': 0, 'part': part, 'tensor': name}[per], []).append(
                weight.grad.flatten()
            )
    assert sets in (None, len(parts))
    norms = torch.stack([torch.cat(grads).norm() for grads in parts.values()])
    assert norms.max() == pytest.approx(1e-3, rel=1e-2) and (norms < 1.001e-3).all()


@pytest.mark.parametrize(
    'code, name, options, sizes',
    [
        (
            'no-patch-tokens',
            'ibot',
            {'model.backbone': dict(type='mmpretrain.ResNet', depth=18, _delete_=True)},
            (32, 32),
        ),
        ('no-patch-tokens', 'ibot', {'model.backbone.out_type': 'cls_token'}, (32, 32)),
        ('indivisible-crop', 'ibot', {}, (32, 32, 20)),
        (
            'no-patch-loss',
            'ibot',
            {'model.head': dict(_delete_=True, type='RegressionHead')},
            (32, 32),
        ),
        ('unknown-targets', 'dino', {'model.head.targets': 'mean'}, (32, 32)),
    ],
)
def test_wrong_token_setting_raises(code, name, options, sizes):
    with raises_code(code):
        model, _ = build(name, **options)
        model([torch.randn(2, 3, size, size, dtype=torch.float64) for size in sizes], mode='loss')


def test_single_images_raise():
    for name in ('ibot_sinkhorn', 'ibot_koleo'):
        model, _ = build(name, **{'model.key_views': [0]})
        with raises_code('batch-of-one'):
            model(crops(1), mode='loss')

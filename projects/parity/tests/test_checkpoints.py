"""Test that mmairl reads checkpoints of other packages: features are equal, and no code in a file is executed.

A test is skipped if its package is not installed. The tests have passed with lightly 1.6.0, solo-learn 1.0.2,
stable-pretraining 0.1.8, Lightning 2.6.6, transformers 5.23.0 and timm 1.0.31.
"""

import copy
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import timm
import torch
import torchvision
from harness.backbones import IMAGES, assert_same_features, randomized
from harness.foreign import Runs, Settings
from torch import Tensor, nn

from mmairl.checkpoints.load import load_checkpoint
from mmairl.study.external import facts_of


def package(name: str) -> ModuleType:
    return pytest.importorskip(name, reason=f'{name} is not installed')


def assert_same(file: Path, theirs: nn.Module, part: str = 'student') -> None:
    theirs.eval()
    assert_same_features(file, lambda images: theirs(images).flatten(1), tolerance=1e-4, part=part)


def written(lightning: ModuleType, module: nn.Module, file: Path, steps: int = 0) -> Path:
    """Train a module for `steps` steps with Lightning's Trainer, and save a checkpoint."""
    how = dict(
        accelerator='cpu',
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        devices=1,
    )
    trainer = lightning.Trainer(max_steps=steps, enable_model_summary=False, **how)
    if steps:
        views = [(IMAGES + number, IMAGES.flip(3)) for number in range(steps)]
        trainer.fit(module, torch.utils.data.DataLoader(views, batch_size=None))
    else:
        trainer.strategy.connect(module)
    trainer.save_checkpoint(file)
    return file


def moved(module: nn.Module, *parts: nn.Module) -> nn.Module:
    """Pass different images through the parts of a module, so that no two parts have equal batch-norm statistics."""
    for number, part in enumerate(parts):
        part.train()(IMAGES + number)
    return module


def lightlys_byol(lightning: ModuleType, sequential: bool) -> nn.Module:
    """Return BYOL with the weight names of lightly's benchmark or, if `sequential`, of lightly's examples."""
    modules = package('lightly.models.modules')
    loss = package('lightly.loss').NegativeCosineSimilarity()
    update = package('lightly.models.utils').update_momentum
    teacher = ('teacher_backbone', 'teacher_projection_head')
    if sequential:
        teacher = ('backbone_momentum', 'projection_head_momentum')

    class BYOL(lightning.LightningModule):
        def __init__(
            self, batch_size_per_device: int = 4, settings: object = None, more: object = None
        ) -> None:
            super().__init__()
            self.save_hyperparameters()
            resnet = torchvision.models.resnet18()
            resnet.fc = nn.Identity()
            self.backbone = nn.Sequential(*list(resnet.children())[:-1]) if sequential else resnet
            self.projection_head = modules.BYOLProjectionHead(512, 32, 16)
            self.prediction_head = modules.BYOLPredictionHead(16, 32, 16)
            self.add_module(teacher[0], copy.deepcopy(self.backbone))
            self.add_module(teacher[1], copy.deepcopy(self.projection_head))

        def training_step(self, views: list[Tensor], _: int) -> Tensor:
            parts = self.backbone, self.projection_head
            copies = [getattr(self, name) for name in teacher]
            for part, copied in zip(parts, copies):
                update(part, copied, m=0.9)
            with torch.no_grad():
                keys = [copies[1](copies[0](view).flatten(1)) for view in views]
            queries = [self.prediction_head(parts[1](parts[0](view).flatten(1))) for view in views]
            return sum(2 * loss(key, query) for key, query in zip(keys, reversed(queries)))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return package('lightly.utils.lars').LARS(
                self.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-6
            )

    return BYOL(settings=Settings(), more=Runs())


@pytest.mark.parametrize(
    'sequential, teacher', [(False, 'teacher_backbone'), (True, 'backbone_momentum')]
)
def test_features_of_lightlys_byol_are_equal(sequential, teacher, tmp_path):
    package('lightly')
    model = lightlys_byol(lightning := package('pytorch_lightning'), sequential)
    file = written(lightning, model, tmp_path / 'a.ckpt', steps=2)
    Settings.built = 0
    assert_same(file, model.backbone)
    assert_same(file, getattr(model, teacher), 'teacher')
    facts = facts_of(str(file))
    assert (
        facts['Lightning'] == lightning.__version__
        and facts['steps'] == '2'
        and facts['epochs'] == '1'
    )
    assert facts['batch_size_per_device'] == '4' and facts['optimizer'].startswith(
        'lr 0.2, decay 1e-06'
    )
    assert load_checkpoint(file)['hyper_parameters'] == dict(
        batch_size_per_device=4, settings=None, more=None
    )
    assert Settings.built == 0


def test_features_of_solo_learns_byol_are_equal(tmp_path, monkeypatch):
    lightning = package('pytorch_lightning')
    # solo-learn imports a schedule from pl_bolts, which does not work with Lightning 2. The test needs no schedule.
    bolts = ModuleType('pl_bolts.optimizers.lr_scheduler')
    bolts.LinearWarmupCosineAnnealingLR = None
    for name in ('pl_bolts', 'pl_bolts.optimizers', bolts.__name__):
        monkeypatch.setitem(sys.modules, name, bolts)
    widths = dict(
        proj_output_dim=16, proj_hidden_dim=32, pred_hidden_dim=32, batch_size=4, num_classes=10
    )
    teacher = dict(base_tau_momentum=0.99, final_tau_momentum=1.0, momentum_classifier=False)
    rates = dict(
        optimizer='sgd',
        lars=True,
        lr=0.1,
        weight_decay=1e-6,
        classifier_lr=0.1,
        exclude_bias_n_norm=True,
    )
    times = dict(scheduler='none', max_epochs=1, warmup_epochs=1, min_lr=0.0, warmup_start_lr=0.0)
    counts = dict(
        accumulate_grad_batches=1, num_large_crops=2, num_small_crops=0, extra_optimizer_args={}
    )
    kind = package('solo.methods.byol').BYOL
    model = kind(
        encoder='resnet18', backbone_args={}, **widths, **teacher, **rates, **times, **counts
    )
    file = written(
        lightning, moved(model, model.encoder, model.momentum_encoder), tmp_path / 'a.ckpt'
    )
    assert_same(file, model.encoder)
    assert_same(file, model.momentum_encoder, 'teacher')
    assert facts_of(str(file))['Lightning'] == lightning.__version__


def test_settings_of_omegaconf_are_left_out(tmp_path):
    lightning, omegaconf = package('pytorch_lightning'), package('omegaconf')

    class BYOL(lightning.LightningModule):
        """A model with the weight names of solo-learn's main branch, which has not been released."""

        def __init__(self, cfg: object) -> None:
            super().__init__()
            self.save_hyperparameters(cfg)
            self.backbone, self.momentum_backbone = (
                timm.create_model('resnet18', num_classes=0) for _ in range(2)
            )

    model = BYOL(omegaconf.OmegaConf.create(dict(method='byol', optimizer=dict(lr=0.45))))
    file = written(
        lightning, moved(model, model.backbone, model.momentum_backbone), tmp_path / 'a.ckpt'
    )
    assert_same(file, model.backbone)
    assert_same(file, model.momentum_backbone, 'teacher')
    assert load_checkpoint(file)['hyper_parameters'] is None


@pytest.mark.parametrize('method', ['BYOL', 'SimCLR'])
def test_features_of_stable_pretraining_are_equal(method, tmp_path):
    kind = getattr(package('stable_pretraining.methods'), method)
    dims = dict(projector_dims=(32, 16), predictor_dims=(32, 16)) if method == 'BYOL' else {}
    model = kind(encoder_name='resnet18', **dims)
    model.save_hyperparameters(dict(optim=functools.partial(torch.optim.AdamW, lr=1e-3)))
    both = (
        (model.backbone.student, model.backbone.teacher) if method == 'BYOL' else (model.backbone,)
    )
    file = written(package('lightning'), moved(model, *both), tmp_path / 'a.ckpt')
    for network, part in zip(both, ('student', 'teacher')):
        assert_same(file, network, part)


@pytest.mark.parametrize('kind', ['ResNetModel', 'ResNetForImageClassification'])
@pytest.mark.parametrize(
    'depths, layer_type', [([2, 2, 2, 2], 'basic'), ([3, 4, 6, 3], 'bottleneck')]
)
def test_features_of_hugging_face_resnets_are_equal(kind, depths, layer_type, tmp_path):
    transformers = package('transformers')
    widths = [16, 32, 64, 128] if layer_type == 'basic' else [64, 128, 256, 512]
    how = dict(depths=depths, layer_type=layer_type, hidden_sizes=widths, embedding_size=16)
    network = moved(net := getattr(transformers, kind)(transformers.ResNetConfig(**how)), net)
    network.save_pretrained(tmp_path)
    inner = network.resnet if hasattr(network, 'resnet') else network

    class Pooled(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return inner.eval()(images).pooler_output

    assert_same(tmp_path / 'model.safetensors', Pooled())


def hugging_face_models() -> Iterator[tuple[str, str, dict]]:
    """Yield a family of models, a head (the two together are a class of transformers), and options of the config."""
    for head in ('Model', 'ForImageClassification'):
        # DINO's networks use this epsilon, while Hugging Face's default is 1e-12.
        yield 'ViT', head, dict(layer_norm_eps=1e-6, intermediate_size=256)
        yield 'Dinov2', head, {}
        yield 'Dinov2', head, dict(use_swiglu_ffn=True)  # only the giant DINOv2 uses SwiGLU
        yield 'Dinov2WithRegisters', head, {}
    dinov3 = dict(patch_size=16, num_register_tokens=4, intermediate_size=256)
    yield 'DINOv3ViT', 'Model', dict(**dinov3, use_gated_mlp=False, hidden_act='gelu')
    yield 'DINOv3ViT', 'Model', dict(**dinov3, use_gated_mlp=True, hidden_act='silu')


@pytest.mark.parametrize('kind, head, how', hugging_face_models())
def test_vit_of_transformers_has_equal_features(kind, head, how, tmp_path):
    transformers = package('transformers')
    small = dict(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=70, patch_size=14
    )
    whole = randomized(
        getattr(transformers, kind + head)(
            getattr(transformers, f'{kind}Config')(**{**small, **how})
        )
    )
    whole.save_pretrained(tmp_path)
    network = whole if head == 'Model' else getattr(whole, whole.base_model_prefix)
    assert_same_features(
        tmp_path / 'model.safetensors',
        lambda images: network(images).last_hidden_state[:, 0],
        images=torch.randn(2, 3, 70, 70),
        tolerance=1e-4,
    )

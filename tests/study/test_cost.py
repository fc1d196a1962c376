"""FLOPs of training steps, counted without data."""

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from torch import nn

from mmairl.config import load_config
from mmairl.registry import MODELS
from mmairl.study.commands import prepare_study
from mmairl.study.cost import (
    count_flops,
    flops_per_image,
    run_flops,
    view_sizes,
)


@MODELS.register_module(force=True)
class OneLayer(BaseModel):
    """A linear layer on 8 x 8 pixels. With `reads`, the loss reads the value of a tensor."""

    def __init__(self, reads=False, data_preprocessor=None):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 4, bias=False))
        self.reads = reads

    def forward(self, inputs, data_samples, mode):
        views = [inputs] if torch.is_tensor(inputs) else inputs
        loss = sum(self.backbone(view).sum() for view in views)
        return dict(loss=loss * float(loss) if self.reads else loss)


def config(model, views=2, **train):
    crop = [dict(type='RandomResizedCrop', size=8)]
    dataset = dict(type='Shapes', views=[crop] * views)
    return Config(
        dict(
            model=model,
            train_dataloader=dict(dataset=dataset),
            total_batch_size=4,
            train_cfg=train or dict(max_epochs=3),
        )
    )


def test_flops_of_a_linear_layer():
    """The forward pass and the gradient of the weights have two FLOPs for each weight."""
    assert count_flops(config(dict(type='OneLayer'))) == 2 * (2 + 2) * 192 * 4
    assert count_flops(config(dict(type='OneLayer'), views=1)) == (2 + 2) * 192 * 4


def test_count_does_not_depend_on_the_random_state():
    """Without a fixed seed, the masks of iBOT would depend on the seed of the process."""
    study = prepare_study('configs/studies/dino_to_dinov2.yaml', 'vit_tiny')
    cfg = study.configs['+ masked patches (iBOT)']
    counts = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        counts.add(count_flops(cfg))
        assert torch.initial_seed() == seed
    assert len(counts) == 1 and None not in counts


def test_uncountable_model_is_unknown():
    cfg = config(dict(type='OneLayer', reads=True))
    assert count_flops(cfg) is None and run_flops(cfg) is None


def test_counts_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr('mmairl.study.cost.hardware.cache', lambda: tmp_path)
    flops = flops_per_image(config(dict(type='OneLayer')))
    monkeypatch.setattr('mmairl.study.cost.count_flops', None)
    assert flops_per_image(config(dict(type='OneLayer'))) == flops


def test_length_counts():
    longer = config(dict(type='OneLayer'), max_epochs=6)
    assert run_flops(longer) == 2 * run_flops(config(dict(type='OneLayer')))


def test_sizes_come_from_the_last_crop():
    cfg = load_config('configs/mocov2plus_r50_200e.py')
    assert view_sizes(cfg) == [224, 224]

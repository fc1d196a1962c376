"""Pages of analyses for data and networks that lack a part of the usual content."""

import math
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from mmairl.report import analysis_pages
from mmairl.report.page import Page


def test_measures_of_a_diverged_network_leave_out_color(tmp_path, monkeypatch):
    """A diverged network has all measures, as NaN. Gray images have no measures of color."""
    values = {'first': {'RankMe': math.nan, 'invariance to hue': math.nan}, 'second': {'RankMe': 9.0}}
    monkeypatch.setattr(analysis_pages, 'Images', lambda *_, **__: [None] * 8)
    monkeypatch.setattr(analysis_pages, '_networks', lambda *_: dict.fromkeys(values))
    monkeypatch.setattr(analysis_pages, 'checkpoint_loss', lambda path: math.nan)
    measured = iter(values.values())
    monkeypatch.setattr(analysis_pages, 'measure_network', lambda *_: next(measured))
    subjects = {name: (name, 'student') for name in values}
    analysis_pages.measures_page(subjects, {'train_dataloader': {}}, 8, {}, False, tmp_path)
    assert (tmp_path / 'measures.csv').read_text().splitlines()[0] == 'network,RankMe'


def test_networks_with_different_numbers_of_stages_are_compared(tmp_path, capsys):
    page = Page('CKA')
    analysis_pages._add_equal_stages(page, {'a and b': [0.5]}, ['first', 'second'], tmp_path)
    assert '0.5000' in capsys.readouterr().out


def test_images_of_several_classes_have_no_map(tmp_path, monkeypatch):
    class Images(SimpleNamespace):
        batch_size = 8
        labels = torch.ones(8, 3, dtype=torch.int64)

        def __len__(self) -> int:
            return 8

        def __iter__(self):
            yield torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))

        def first(self, count: int) -> torch.Tensor:
            return next(iter(self))

        def embed(self, network: nn.Module, images: torch.Tensor) -> torch.Tensor:
            return network(images)

    monkeypatch.setattr(analysis_pages, '_networks', lambda *_: {'a': nn.Flatten()})
    page: Path = analysis_pages.geometry_page({}, Images(cfg={}), False, tmp_path, 0)
    text = page.read_text()
    assert 'Invariances' in text and 'Nearest neighbors' not in text

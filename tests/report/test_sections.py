import re
from html.parser import HTMLParser

import torch

from mmairl.evaluation.protocol import evaluation_data, features_of
from mmairl.registry import DATASETS
from mmairl.report import sections
from mmairl.report.page import Page

VOID = {'meta', 'img', 'br', 'path', 'use', 'rect', 'link'}


class Outline(HTMLParser):
    """Counts a page's elements, collects its outside references, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.counts, self.references, self.ids = [], {}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        attrs = dict(attrs)
        self.references += [attrs[name] for name in ('src', 'href', 'data', 'srcset') if name in attrs]
        self.ids += [attrs['id']] if 'id' in attrs else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def whole_page(cfg, results, work_dir) -> str:
    data = evaluation_data(cfg)
    train, test = features_of(cfg, None, data, 'cpu')
    page = Page('A <title>', 'A lead.')
    sections.add_results(page, results)
    sections.add_views(page, cfg, seed=0)
    sections.add_maps(page, {'raw pixels': test, 'student': test}, data[1].classes, seed=0)
    sections.add_neighbours(page, (data[0].raw, train), (data[1].raw, test), data[1].classes)
    sections.add_curves(page, work_dir)
    return page.html()


def test_page_is_sound_self_contained_and_has_every_figure(cfg, results, work_dir):
    text = whole_page(cfg, results, work_dir)
    outline = Outline(text)
    assert outline.open == []
    assert outline.counts['section'] == 5
    assert outline.counts['svg'] == 1 + 2 + 4  # bars, maps, curves
    assert outline.counts['img'] == 8 * 3 + 3 * (1 + 7)  # pairs, neighbours
    assert outline.counts['table'] == 1
    assert all(ref.startswith(('data:image/png;base64,', '#')) for ref in outline.references)
    assert not re.search(r'url\((?!#)|@import|<script|<link', text)
    assert len(outline.ids) == len(set(outline.ids))
    assert {ref[1:] for ref in outline.references if ref[0] == '#'} <= set(outline.ids)
    assert set(re.findall(r'url\(#([^)]+)\)', text)) <= set(outline.ids)
    assert 'A &lt;title&gt;' in text and 'trained &lt;student&gt;' in text and '<student>' not in text


def test_charts_take_their_colours_from_the_page(cfg, results, work_dir):
    text = whole_page(cfg, results, work_dir)
    used = set(re.findall(r'var\((--\w+)\)', text))
    for scheme in re.findall(r':root \{([^}]*)\}', text):
        assert used <= set(re.findall(r'(--\w+):', scheme))
    assert not re.search(r'#0[0-9]0[0-9]0[0-9]', text)


def test_views_are_training_views_as_bytes(cfg):
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    first, second = sections.augmented(cfg, dataset, [4, 2])
    assert torch.equal(first, dataset.images[[4, 2]])
    assert torch.equal(second, dataset.images[[4, 2]].flip(-1))


def test_neighbours_are_framed_by_whether_they_are_right(cfg):
    data = evaluation_data(cfg)
    train, test = features_of(cfg, None, data, 'cpu')
    wrong = type(train)(train.x, (train.y + 1) % 3)
    for bank, right_frames in ((train, 21), (wrong, 0)):
        page = Page('')
        sections.add_neighbours(page, (data[0].raw, bank), (data[1].raw, test), data[1].classes)
        assert page.html().count('"picture right"') == right_frames
        assert page.html().count('"picture wrong"') == 21 - right_frames

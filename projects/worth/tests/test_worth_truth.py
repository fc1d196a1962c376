"""Test the synthetic domains of projects.worth, the report of `projects.worth.truth`, and patches cut from photographs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmairl.data.splits import groups_of
from mmairl.io import write_json
from projects.worth.domains import DOMAINS, SIDE, draw
from projects.worth.photographs import LABELLED, cut
from projects.worth.truth import report


@pytest.mark.parametrize('domain', DOMAINS, ids=lambda domain: domain.name)
def test_domain_repeats_images_and_has_its_noise(domain):
    y = np.arange(8) % domain.classes
    images = draw(domain, y, 3)
    assert images.shape == (8, SIDE, SIDE, 3) and images.dtype == np.uint8
    assert (images == draw(domain, y, 3)).all() and (images != draw(domain, y, 4)).any()
    clean = draw(replace(domain, noise=0.0), y, 3).astype(float)
    inside = (clean > 80) & (clean < 175)  # in this range of values, the noise is not clipped
    assert (images - clean)[inside].std() / 255 == pytest.approx(domain.noise, abs=0.01)


def test_colours_decide_where_they_should():
    (domain,) = (one for one in DOMAINS if one.name == 'colours')
    y = np.arange(120) % domain.classes
    colours = draw(domain, y, 0).reshape(120, -1, 3).astype(float)
    tint = np.array([image[image.std(1).argsort()[-100:]].mean(0) for image in colours])
    tint -= tint.mean(1, keepdims=True)
    means = np.array([tint[:60][y[:60] == label].mean(0) for label in range(domain.classes)])
    assert (((tint[60:, None] - means) ** 2).sum(2).argmin(1) == y[60:]).mean() > 0.9


def test_the_report_counts_answers_by_the_truth(tmp_path, capsys):
    answer = dict(own='own pre-training', best='raw pixels', gain=1.0, low=0.0, high=2.0, more=0)
    truths = [
        ('pays', 60, 50),
        ('pays', 40, 50),
        ('keep', 51, 50),
        ('keep', 60, 50),
        ('undecided', 60, 50),
    ]
    for number, (word, own_score, other_score) in enumerate(truths):
        scores = {
            'own pre-training': own_score,
            'raw pixels': other_score,
            'random initialisation': 10,
        }
        write_json(
            tmp_path / f'{number:02}/seed_0/truth.json', dict(**answer, word=word, scores=scores)
        )
    report(tmp_path)
    assert '2 right, 2 wrong, 1 not decided of 5' in capsys.readouterr().out


def test_patch_names_state_their_region(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (530, 600), np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'brick.png')
    lines = cut(tmp_path / 'brick.png', tmp_path / 'images')
    assert len(lines) == len(set(lines)) == LABELLED and lines[0] == 'brick_r00_000.png,brick'
    names = sorted(path.name for path in (tmp_path / 'images').iterdir())
    assert Counter(groups_of(names, r'(\w+_r\d+)_')) == {
        f'brick_r{region:02}': 16 for region in range(16)
    }
    last = np.asarray(Image.open(tmp_path / 'images/brick_r15_255.png'))
    assert (last == pixels[9 + 480 : 9 + 512, 44 + 480 : 44 + 512]).all()

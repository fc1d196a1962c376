"""Test the error rate of `Race`, a sequential test between classifiers, and how many labels it saves.

Further tests check the page of `python -m projects.label_next`, which asks for labels.
"""

import json
import threading
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from mmairl.errors import UserError
from projects.label_next import simulate
from projects.label_next.__main__ import LabelServer, Session, main
from projects.label_next.race import Race


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(simulate, 'IMAGES', 300)
    monkeypatch.setattr(simulate, 'SIZES', range(50, 301, 50))


@pytest.mark.parametrize('accuracies', [(0.7, 0.7), (0.7, 0.7, 0.7), (0.7, 0.69)])
def test_best_is_rarely_eliminated(small, accuracies):
    wrong, *_ = simulate.simulate(accuracies, studies=60)
    assert wrong <= 5


def test_race_takes_half_of_a_fixed_sample(small):
    wrong, mean_labels, _, fixed, _ = simulate.simulate((0.85, 0.70), studies=20)
    assert wrong == 0
    assert mean_labels < fixed / 2


def test_images_without_disagreement_are_not_drawn():
    predictions = np.array([[0, 0, 0]] * 5 + [[0, 1, 1]] * 5)
    race = Race(predictions)
    while (image := race.next_image()) is not None:
        assert image >= 5
        race.add(image, label=1)
    assert race.remaining == [1, 2]
    assert (
        race.is_labeled.sum() == 3
    )  # after three of five labels, the other two cannot reverse the lead


@pytest.fixture
def folder(tmp_path):
    """Write predictions.json, in which 'a.pth' predicts '<b>cat' and 'b.pth' predicts 'dog' for each of 40 images."""
    names = [str(tmp_path / f'{number}.png') for number in range(40)]
    for name in names:
        Image.new('RGB', (8, 8)).save(name)
    predictions = {'a.pth': dict.fromkeys(names, '<b>cat'), 'b.pth': dict.fromkeys(names, 'dog')}
    (tmp_path / 'predictions.json').write_text(json.dumps(predictions))
    return tmp_path


@pytest.fixture
def served(folder):
    server = LabelServer(Session(folder))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    server.server_close()


def answer(server: LabelServer, label: str, image: str = '') -> str:
    form = urlencode(dict(image=image or server.session.image, label=label))
    return urlopen(server.url, form.encode(), timeout=60).read().decode()


def test_page_asks_until_one_is_best(served):
    page = urlopen(served.url, timeout=60).read().decode()
    assert '&lt;b&gt;cat' in page
    assert '<b>cat' not in page
    while served.session.image:
        page = answer(served, 'dog')
    assert 'b.pth is the best on these images' in page
    assert len(served.session.labels) < 20


def test_labels_survive_a_restart(served, folder):
    first = served.session.image
    answer(served, 'dog')
    answer(served, 'cat', image=first)  # the form is sent twice
    again = Session(folder)
    assert again.labels == [[first, 'dog']]
    assert again.image == served.session.image


def test_other_address_adds_no_label(served):
    served.url += 'x'
    with pytest.raises(HTTPError):
        answer(served, 'dog')
    assert served.session.labels == []


def test_labels_of_other_predictions_raise(folder):
    (folder / 'labels.json').write_text(json.dumps([['elsewhere.png', 'dog']]))
    with pytest.raises(UserError) as error:
        Session(folder)
    assert error.value.code == 'other-labels'


def test_checkpoints_classify_by_labeled_images(tmp_path):
    random = np.random.default_rng(0)
    for part in ('train/bright', 'train/dark', 'images'):
        (tmp_path / part).mkdir(parents=True)
        for number in range(4):
            low, high = (150, 255) if part == 'train/bright' else (0, 100)
            pixels = random.integers(low, high, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / part / f'{number}.png')
    checkpoints = []
    for seed in range(2):
        torch.manual_seed(seed)
        checkpoints.append(str(tmp_path / f'{seed}.pth'))
        torch.save(torchvision.models.resnet18().state_dict(), checkpoints[-1])
    out = tmp_path / 'out'
    main([str(tmp_path / 'train'), str(tmp_path / 'images'), *checkpoints, '--out', str(out)])
    predictions = json.loads((out / 'predictions.json').read_text())
    assert list(predictions) == checkpoints
    assert all(set(known.values()) == {'dark'} for known in predictions.values())

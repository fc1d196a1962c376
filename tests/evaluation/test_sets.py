"""The data sets of an evaluation, as each protocol takes them."""

from pathlib import Path

import pytest
import torch

from mmairl.configs import load_config
from mmairl.evaluation.sets import held_out
from mmairl.registry import TRANSFORMS

CONFIGS = Path(__file__).parents[2] / 'configs'


def test_a_protocol_may_have_a_view_of_its_own_and_a_data_set_its_held_out_fraction():
    """VISSL's SVM squeezes whole images of VOC2007; BYOL holds 10 009 of ImageNet's training images out."""
    voc, imagenet = (load_config(str(CONFIGS / f'evaluation/{name}_r50.py')) for name in ('voc2007', 'imagenet'))
    view = [TRANSFORMS.build(step) for step in voc.evaluation.views.svm]
    image = torch.zeros(3, 50, 100, dtype=torch.uint8)
    image[:, :, 50:] = 255
    for step in view:
        image = step(image)
    assert image.shape == (3, 224, 224) and image[:, :, :100].max() == 0 and image[:, :, 124:].min() == 255
    fit_on, held = held_out(imagenet.evaluation)
    assert fit_on.pop('held') is False and held.pop('held') is True and fit_on == held
    assert held['fraction'] * 1_281_167 == pytest.approx(10_009)

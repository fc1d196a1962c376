"""Which values are normal, and what is said of those that are not."""

from math import inf, nan

import pytest

from mmairl.analysis.health import BY_NAME, QUANTITIES, diagnose, sentence, state

# As measured on Shapes: MoCo v2+ at the end of 8 epochs, and a mean teacher of momentum 0 without a predictor.
SOUND = dict(
    loss=12.4,
    spread_query=0.68,
    spread_key=0.87,
    rank_features=29,
    rank_embeddings=6.8,
    positive=0.35,
    negative=0.025,
    hardest_negative=0.54,
    contrast=0.33,
    teacher_distance=0.03,
    gradient_norm=0.5,
    update_ratio=0.004,
    queue_steps=4,
    queue_epochs=0.087,
    queue_filled=1,
    queue_drift=0.09,
    data_share=0.04,
)
COLLAPSED = dict(
    spread_query=0.024,
    spread_key=0.023,
    rank_features=46,
    rank_embeddings=2.7,
    positive=0.9994,
    negative=0.9994,
    hardest_negative=0.9998,
    contrast=0.0,
    teacher_distance=0.0,
    gradient_norm=0.006,
    update_ratio=0.0001,
)


def test_a_sound_run_has_nothing_to_say():
    assert diagnose(SOUND) == []


def test_a_collapsed_run_is_named_with_its_cause():
    found = diagnose(COLLAPSED)
    assert found[0].startswith('collapse: the standard deviation of the keys is 0.023 of 1/sqrt(d)')
    assert any('other images are 0.999 alike' in text for text in found)
    assert any('the teacher is 0 from the student' in text for text in found)
    bad = [text for text in found if not text.startswith('watch: ')]
    assert found[: len(bad)] == bad and len(bad) < len(found)  # the bad first


@pytest.mark.parametrize('value', [nan, inf, -inf])
@pytest.mark.parametrize('quantity', QUANTITIES, ids=lambda quantity: quantity.name)
def test_what_is_not_finite_is_bad_whatever_the_range(quantity, value):
    assert state(quantity, value) == 'bad'
    assert 'diverged' in sentence(quantity, value)


@pytest.mark.parametrize('quantity', QUANTITIES, ids=lambda quantity: quantity.name)
def test_the_ends_of_the_ranges_are_in_them_and_beyond_there_is_a_sentence(quantity):
    assert quantity.floor <= quantity.low <= quantity.high <= quantity.ceiling
    steps = ((quantity.low, quantity.floor, -1e-3), (quantity.high, quantity.ceiling, 1e-3))
    for normal, worst, outwards in steps:
        if abs(normal) == inf:
            continue
        beyond = normal + outwards * abs(normal)
        assert (state(quantity, normal), sentence(quantity, normal)) == ('good', '')
        assert state(quantity, beyond) != 'good' and f'{beyond:.3g}' in sentence(quantity, beyond)
        if abs(worst) != inf:
            assert state(quantity, worst) != 'bad'
            assert state(quantity, worst + outwards * abs(worst)) == 'bad'


def test_names_are_their_own_and_what_is_unknown_or_absent_is_passed_over():
    assert len(BY_NAME) == len(QUANTITIES)
    assert diagnose({'lr': nan, 'gradient_norm_layer1': 0.0}) == []


def test_a_slow_loader_is_to_be_watched_and_then_bad():
    assert diagnose(dict(data_share=0.3))[0].startswith('watch: 0.3 of the time goes by waiting for data')
    assert diagnose(dict(data_share=0.7))[0].startswith('0.7 of the time')

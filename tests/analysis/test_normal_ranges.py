"""Which values are normal, and what is said of those that are not."""

from math import inf, nan

from mmairl.analysis.normal_ranges import QUANTITIES, sentence, state

# As measured on Shapes: MoCo v2+ at the end of 8 epochs, and a mean teacher of momentum 0 without a predictor.
SOUND = dict(loss=12.4, spread_query=0.68, spread_key=0.87, rank_features=29, rank_embeddings=6.8, positive=0.35)
SOUND |= dict(negative=0.025, hardest_negative=0.54, contrast=0.33, teacher_distance=0.03, gradient_norm=0.5)
SOUND |= dict(update_ratio=0.004, queue_steps=4, queue_epochs=0.087, queue_filled=1, queue_drift=0.09, data_share=0.04)
COLLAPSED = dict(spread_query=0.024, spread_key=0.023, rank_features=46, rank_embeddings=2.7, positive=0.9994)
COLLAPSED |= dict(negative=0.9994, hardest_negative=0.9998, contrast=0.0, teacher_distance=0.0, gradient_norm=0.006)


def test_a_sound_run_is_good_and_a_collapsed_run_is_bad_for_a_named_reason():
    assert {q.name for q in QUANTITIES if q.name in SOUND and state(q, SOUND[q.name]) != 'good'} == set()
    found = {q.name: sentence(q, COLLAPSED[q.name]) for q in QUANTITIES if state(q, COLLAPSED.get(q.name, 0)) == 'bad'}
    assert found['spread_key'].startswith('collapse: the standard deviation of the keys is 0.023 of 1/sqrt(d)')
    assert {'negative', 'teacher_distance'} <= set(found)


def test_the_ends_of_the_ranges_are_in_them_and_beyond_there_is_a_sentence():
    for quantity in QUANTITIES:
        for value in (nan, inf, -inf):
            assert state(quantity, value) == 'bad' and 'diverged' in sentence(quantity, value)
        assert quantity.floor <= quantity.low <= quantity.high <= quantity.ceiling
        for normal, worst, outwards in ((quantity.low, quantity.floor, -1e-3), (quantity.high, quantity.ceiling, 1e-3)):
            if abs(normal) == inf:
                continue
            beyond = normal + outwards * abs(normal)
            assert (state(quantity, normal), sentence(quantity, normal)) == ('good', ''), quantity.name
            assert state(quantity, beyond) != 'good' and f'{beyond:.3g}' in sentence(quantity, beyond), quantity.name
            if abs(worst) != inf:
                assert state(quantity, worst) != 'bad', quantity.name
                assert state(quantity, worst + outwards * abs(worst)) == 'bad', quantity.name

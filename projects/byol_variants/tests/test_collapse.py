"""Test that VARIANTS of collapse.py and the configs of BYOL's Table 5b have the same combinations of settings."""

from mmairl.config import load_config
from projects.byol_variants.collapse import ROOT, VARIANTS

NAMES = (
    'byol',
    'predictor_target_beta1',
    'target_beta1',
    'simclr',
    'predictor_beta1',
    'predictor_beta0',
    'mean_teacher',
    'neither_beta0',
)


def test_variants_are_the_rows_of_table_5b():
    rows = set()
    for name in NAMES:
        model = load_config(ROOT / f'configs/byol_variants/{name}_r50_300e.py').model
        rows.add((model.predictor is not None, model.target == 'teacher', model.head.beta))
    variants = {
        (predictor, target == 'teacher', beta) for predictor, target, beta, _ in VARIANTS.values()
    }
    assert variants == rows

"""The stored reference curves belong to rows of their study, and they show a collapse."""

import json

from mmairl.config import home
from mmairl.report.reference import LABELS, STORED
from mmairl.study.scale import read_scale
from mmairl.study.spec import read_study


def test_stored_references_show_a_collapse():
    rows = {row.name for row in read_study(home() / 'configs/studies/reference_curves.yaml').rows}
    for scale, stored in json.loads(STORED.read_text()).items():
        assert read_scale(scale)
        assert stored['text']
        assert stored['rows'].keys() <= rows
        spreads = {}
        accuracies = {}
        for row, run in stored['rows'].items():
            assert {'loss', 'health_spread_key'} <= run['curves'].keys() <= LABELS.keys()
            spreads[row] = run['curves']['health_spread_key'][1][-1]
            accuracies[row] = run['knn']
            assert 0 < run['knn'] < 100
        if 'BYOL, collapsed' in spreads:
            assert spreads.pop('BYOL, collapsed') < 0.1 < min(spreads.values())
            assert accuracies.pop('BYOL, collapsed') < min(accuracies.values())

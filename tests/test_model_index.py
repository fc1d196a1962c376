"""The files for OpenMIM agree with the configs and the published tables."""

from pathlib import Path

import pytest
import yaml

from projects.papers.model_index import PUBLISHED, files

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize('name', ['model-index.yml', 'configs/metafile.yml'])
def test_generated_file_is_current(name):
    assert (ROOT / name).read_text() == files()[name], 'the file is outdated; run python -m projects.papers.model_index'


def test_metafile_states_published_numbers_and_the_sample():
    *models, sample = yaml.safe_load((ROOT / 'configs/metafile.yml').read_text())['Models']
    assert all((ROOT / model['Config']).is_file() and model['Weights'] is None for model in models)
    results = [result for model in models for result in model['Results'] or []]
    assert len(results) == len(PUBLISHED)
    assert all('published' in metric for result in results for metric in result['Metrics'])
    assert (ROOT / sample['Weights']).stat().st_size < 2e6

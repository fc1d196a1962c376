"""The files for OpenMIM agree with the configs and the published tables."""

from pathlib import Path

import yaml

from mmairl.apis.suggest import methods
from mmairl.config import home, load_config

ROOT = Path(__file__).parents[1]


def content(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def test_index_names_the_metafile():
    assert content(ROOT / 'model-index.yml')['Import'] == ['configs/metafile.yml']


def test_entries_agree_with_their_configs():
    *models, sample = content(ROOT / 'configs/metafile.yml')['Models']
    paths = [path.relative_to(home()).as_posix() for path in methods().values()]
    assert sorted(model['Config'] for model in models) == sorted(paths)
    for model in models:
        cfg = load_config(str(ROOT / model['Config']))
        stated = model['Metadata']
        assert stated['Epochs'] == cfg.train_cfg.max_epochs
        assert stated['Batch Size'] == cfg.total_batch_size
        assert stated['Loss'] == cfg.model.head.type
        assert model['Weights'] is None
    assert (ROOT / sample['Weights']).stat().st_size < 2e6


def test_results_are_published_numbers():
    *models, _ = content(ROOT / 'configs/metafile.yml')['Models']
    tables = [path.read_text() for path in ROOT.glob('projects/papers/tables/*.yaml')]
    results = [result for model in models for result in model['Results'] or []]
    assert len(results) == 8
    for result in results:
        [(metric, value)] = result['Metrics'].items()
        row = result['Source'].rpartition(' ')[2]
        assert 'published' in metric
        assert any(row in table and str(value) in table for table in tables), result

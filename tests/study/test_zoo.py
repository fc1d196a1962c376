"""The model zoo: the committed files are what the configs and the papers' tables say, and OpenMMLab's reader takes them."""

from pathlib import Path

import pytest
import yaml
from mmengine.config import Config
from modelindex.load_model_index import load

from mmairl.study import zoo
from mmairl.study.published import tables

ROOT = Path(__file__).parents[2]
COMMAND = 'run: python -m mmairl.study.zoo'


@pytest.fixture(scope='module')
def found() -> list[zoo.Entry]:
    return zoo.entries()


def numbers_in(value) -> set[float]:
    """Every number anywhere in the published tables, as printed."""
    if isinstance(value, dict | list):
        return set().union(*map(numbers_in, value.values() if isinstance(value, dict) else value))
    return {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()


def test_the_files_are_what_the_configs_and_tables_say(found):
    for path, content in zoo.metafiles(found).items():
        assert yaml.safe_load((ROOT / path).read_text()) == content, COMMAND
    assert (ROOT / 'docs' / 'model_zoo.md').read_text() == zoo.page(found), COMMAND


def test_every_config_of_the_zoo_exists_and_its_metadata_is_what_it_trains(found):
    """Read again by mmengine, not by the zoo's own loader."""
    for record in models():
        cfg = Config.fromfile(ROOT / record['Config'], import_custom_modules=False)
        meta = record['Metadata']
        assert meta['Batch Size'] == cfg.total_batch_size
        assert (meta.get('Epochs'), meta.get('Iterations')) == (
            cfg.train_cfg.get('max_epochs'),
            cfg.train_cfg.get('max_iters'),
        )
    assert len(models()) == len(found) == len({record['Name'] for record in models()})


def test_no_pretraining_config_is_left_out():
    others = ('_base_', 'demo', 'evaluation', 'fast', 'transfer')
    paths = {*(ROOT / 'configs').glob('**/*.py'), *(ROOT / 'projects').glob('*/configs/**/*.py')}
    there = {path.relative_to(ROOT) for path in paths if not {*path.relative_to(ROOT).parts} & {*others}}
    there = {path.as_posix() for path in there if 'shapes' not in path.name}  # drawn images
    assert there == {record['Config'] for record in models()}


def test_every_number_is_labelled_as_published_and_none_has_weights():
    for record in models():
        assert 'Weights' not in record
        for result in record.get('Results', ()):
            assert result['Published'] is True and 'Tab.' in result['Source']
            assert set(result['Metrics'].values()) <= numbers_in(tables())


@pytest.mark.parametrize(
    ('config', 'metric', 'value', 'source'),
    [
        # read off the papers by hand
        ('configs/mocov2_r50_200e.py', 'in1k', 67.2, 'AIRL Tab. 1'),
        ('configs/mocov2plus_lars_r50_200e.py', 'voc07_ap50', 62.9, 'AIRL Tab. 2'),
        ('configs/byol_lars_r50_200e.py', 'coco_fpn_box', 40.8, 'AIRL Tab. 2'),
        ('configs/longer/byol_r50_100e.py', 'in1k', 69.4, 'AIRL Tab. 6'),
        ('configs/architectures/mocov2plus_r18_100e.py', 'voc0712_ap75', 55.9, 'AIRL Tab. 7'),
        ('configs/architectures/byol_lars_r50_1000e.py', 'top5', 91.6, 'BYOL Tab. 1'),
        ('projects/byol_variants/configs/simclr_r50_300e.py', 'top1', 69.4, 'BYOL Tab. 5b'),
    ],
)
def test_a_number_stands_at_the_config_that_the_paper_prints_it_for(config, metric, value, source):
    task, dataset, name = zoo.COLUMNS[metric]
    results = next(record for record in models() if record['Config'] == config)['Results']
    asked = [r for r in results if (r['Task'], r['Dataset']) == (task, dataset) and r['Metrics'].get(name) == value]
    assert len(asked) == 1 and source in asked[0]['Source']


def test_a_number_that_two_tables_print_alike_is_one_and_another_stands_beside():
    """MoCo v2+ on Cityscapes is 77.6 in Tab. 1 and 77.7 in Tab. 2; on ImageNet 72.0 in both."""
    numbers = zoo.published()['configs/mocov2plus_r50_200e.py']
    assert {(n.value, n.sources) for n in numbers if n.dataset == 'Cityscapes'} == {
        (77.6, ('AIRL Tab. 1',)),
        (77.7, ('AIRL Tab. 2',)),
    }
    assert [n.sources for n in numbers if n.metric == 'Top 1 Accuracy'] == [('AIRL Tab. 1', 'AIRL Tab. 2')]


def test_networks_that_were_rescaled_or_changed_by_options_lend_their_numbers_to_no_config():
    """Tab. 8's 76.6 is BYOL's after NormRescale; the config of that row trains the network before."""
    numbers = zoo.published()['configs/byol_lars_r50_200e.py']
    assert {n.value for n in numbers if (n.dataset, n.metric) == ('PASCAL VOC 07', 'AP50')} == {71.7}


def test_openmmlabs_own_reader_takes_the_index(monkeypatch):
    monkeypatch.chdir(ROOT)
    index = load(str(ROOT / 'model-index.yml'))
    index.build_models_with_collections()
    assert len(list(index.models)) == len(models())
    assert {model.in_collection for model in index.models} == {collection.name for collection in index.collections}


def models() -> list[dict]:
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    return [model for path in index['Import'] for model in yaml.safe_load((ROOT / path).read_text())['Models']]

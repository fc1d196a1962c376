import json
import runpy
import sys
from pathlib import Path

import pytest
from sklearn.neighbors import KNeighborsClassifier

from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.protocol import evaluate, evaluation_data, features_of

TOOL = Path(__file__).parents[2] / 'tools' / 'evaluate.py'


@pytest.fixture
def tool(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # which is where it keeps features

    def run(*args) -> int:
        monkeypatch.setattr(sys, 'argv', [str(TOOL), *map(str, args)])
        try:
            runpy.run_path(str(TOOL), run_name='__main__')
        except SystemExit as leave:
            return leave.code
        return 0

    return run


def test_tool_measures_the_named_part_and_writes_json_beside_the_checkpoint(tool, cfg, config_file, checkpoint, capsys):
    assert tool('knn', config_file, checkpoint, '--part', 'teacher', '--k', 3) == 0
    record = json.loads((checkpoint.parent / 'epoch_3_teacher_knn.json').read_text())
    train, test = features_of(cfg, load_backbone(cfg, seed=2), evaluation_data(cfg), 'cpu')
    reference = KNeighborsClassifier(3, metric='cosine', algorithm='brute').fit(train.x, train.y)
    assert record['scores']['k-NN, k = 3'] == pytest.approx(100 * reference.score(test.x, test.y), abs=1e-4)
    assert record['details'] == {'train_images': 45, 'test_images': 30, 'dimensions': 64, 'temperature': 0.07}
    assert 'teacher of epoch_3.pth' in capsys.readouterr().out


def test_baselines_need_no_checkpoint(tool, config_file, tmp_path):
    for subject in ('pixels', 'random'):
        out = tmp_path / f'{subject}.json'
        assert tool('logreg', config_file, '--init', subject, '--out', out) == 0
        assert json.loads(out.read_text())['scores']['logistic regression, top-1'] == 100.0


@pytest.mark.parametrize('args', [[], ['{checkpoint}', '--init', 'random']])
def test_checkpoint_and_baseline_exclude_each_other(tool, config_file, checkpoint, args, capsys):
    assert tool('knn', config_file, *(arg.format(checkpoint=checkpoint) for arg in args)) == 2
    assert 'error: give either a checkpoint or --init' in capsys.readouterr().err


def test_a_broken_checkpoint_leaves_no_json(tool, config_file, checkpoint, tmp_path, capsys):
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    assert tool('knn', config_file, checkpoint) == 2
    assert capsys.readouterr().err.count('\n') == 1
    assert not list(tmp_path.glob('*.json*'))


def test_a_config_without_evaluation_data_is_one_sentence(cfg):
    cfg.pop('evaluation')
    with pytest.raises(UserError, match='names no data to evaluate on'):
        evaluate(cfg, 'knn', 'pixels')

"""tools/analyze.py: its pictures, numbers, pages and errors."""

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmairl.checkpoints.read import read_backbone
from mmairl.cli.analyze import named
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.evaluation.backbone import load_backbone

TOOL = 'tools/analyze.py'
DEMO = Path(__file__).parents[2] / 'configs/demo/mocov2plus_shapes.py'
FEW = ['--config', DEMO, '--images', '60', '--batch-size', '20', '--cfg-options', 'evaluation.test.count=60']


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    """Return a folder with two checkpoints of the demo's network, each with a student and a teacher."""
    folder = tmp_path_factory.mktemp('analyze')
    register()
    cfg = load_config(str(DEMO))
    for name, seed in (('a', 0), ('b', 2)):
        parts = {'backbone.': load_backbone(cfg, seed=seed), 'teacher.backbone.': load_backbone(cfg, seed=seed + 1)}
        state = {prefix + key: value for prefix, net in parts.items() for key, value in net.state_dict().items()}
        torch.save(dict(meta={}, state_dict=state), folder / f'{name}.pth')
    return folder


def numbers(folder: Path, name: str) -> list[list[str]]:
    with (folder / f'{name}.csv').open() as file:
        return list(csv.reader(file))


def assert_pictures(folder: Path, *names: str) -> None:
    for name in names:
        with Image.open(folder / f'{name}.png') as image:
            assert min(image.size) > 200 and len(image.convert('L').getcolors(256)) > 3
        assert (folder / f'{name}.svg').read_text().rstrip().endswith('</svg>')


def test_norms_need_no_config(folder, tmp_path, run_tool):
    run_tool(TOOL, 'norms', folder / 'a.pth', folder / 'b.pth', '--out', tmp_path)
    assert_pictures(tmp_path, 'norms')
    header, *rows = numbers(tmp_path, 'norms')
    weights = read_backbone(folder / 'b.pth').weights
    assert header == ['tensor', 'a', 'b'] and len(rows) == 16
    assert all(float(row[2]) == pytest.approx(weights[row[0]].norm().item(), rel=1e-5) for row in rows)
    assert 'looks LARS-trained' in (tmp_path / 'norms.html').read_text()


def test_released_models_keep_their_names():
    names = ['timm:vit.a', 'hf-hub:org/vit.b', 'runs/c.pth']
    assert named(names) == {'timm:vit.a': names[0], 'hf-hub:org/vit.b': names[1], 'c': names[2]}


def test_cka_of_one_checkpoint_and_of_several(folder, tmp_path, run_tool):
    run_tool(TOOL, 'cka', folder / 'a.pth', '--full', '--recalibrate', '--out', tmp_path, *FEW)
    header, *rows = numbers(tmp_path, 'cka')
    assert header[1:] == ['layer1', 'layer2', 'layer3', 'layer4', 'pooled'] and len(rows) == 5
    assert_pictures(tmp_path, 'cka', 'cka_stages')
    (folder / 'again.pth').write_bytes((folder / 'a.pth').read_bytes())
    run_tool(TOOL, 'cka', *(folder / f'{name}.pth' for name in ('a', 'b', 'again')), '--out', tmp_path, *FEW)
    header, *rows = numbers(tmp_path, 'cka')
    assert header[1:] == ['a', 'b', 'again'] and float(rows[0][3]) == pytest.approx(1) and float(rows[0][2]) < 1

    run_tool(TOOL, 'cka', *(folder / f'{name}.pth' for name in ('a', 'b', 'again')), '--lines', '--out', tmp_path, *FEW)
    header, (name, *other), (_, *same) = numbers(tmp_path, 'cka')
    assert header[1:] == ['layer1', 'layer2', 'layer3', 'layer4', 'pooled'] and name == 'a and b'
    assert [float(value) for value in same] == pytest.approx([1] * 5, abs=1e-4) and float(other[-1]) < 0.999


def test_geometry_draws_everything_on_a_page(folder, tmp_path, run_tool):
    run_tool(TOOL, 'geometry', folder / 'a.pth', '--out', tmp_path, *FEW)
    assert_pictures(tmp_path, 'spectrum')
    (header, row), invariance = numbers(tmp_path, 'geometry'), numbers(tmp_path, 'invariance')
    assert header == ['network', 'alignment', 'uniformity', 'RankMe', 'spread', 'dimensions', 'images']
    assert row[-2:] == ['128', '60'] and 0 < float(row[1]) < 4 and float(row[2]) <= 0
    assert {line[1] for line in invariance[1:]} >= {'crop', 'hue', 'solarize'}
    page = (tmp_path / 'geometry.html').read_text()
    assert (
        't-SNE maps of the features of 60' in page
        and 'Nearest neighbors by a' in page
        and page.count('<svg') >= 2
        and 'data-chart=' in page
    )


def test_measures_are_a_table_without_labels(folder, tmp_path, run_tool, capsys):
    few = [*FEW[:-1], 'evaluation.train.count=60', 'evaluation.test=None']
    run_tool(TOOL, 'measures', folder / 'a.pth', folder / 'b.pth', '--out', tmp_path, *few)
    assert '60 training images, labels not used' in capsys.readouterr().out
    header, a, _ = numbers(tmp_path, 'measures')
    values = dict(zip(header[1:], map(float, a[1:])))
    assert {
        'RankMe',
        'LiDAR',
        'alpha-ReQ',
        'uniformity',
        'alignment',
        'invariance to hue',
    } < values.keys() and 1 < values['RankMe'] < 60
    page = (tmp_path / 'measures.html').read_text()
    # The run has no log, so the page shows a dash in place of its loss.
    assert 'near 0' not in page and '–' in page
    # The column of losses has no chart.
    assert page.count('data-chart=') == len(header) - 2


def test_missing_input_is_an_error(folder, tmp_path, run_tool, capsys):
    a, b = folder / 'a.pth', folder / 'b.pth'
    study, misspelt = DEMO.parents[1] / 'studies/ladder.yaml', tmp_path / 'misspelt.yaml'
    misspelt.write_text('{title: "", tasks: {dmo: [knn]}, rows: [{name: MoCo v2+, config: mocov2plus_r50_200e.py}]}')
    for arguments, sentence in (
        ((TOOL, 'cka', a, b), 'give --config'),
        ((TOOL, 'norms', a, a), 'listed twice'),
        (
            (TOOL, 'measures', a, '--config', DEMO.parents[1] / 'evaluation/shapes_r18.py'),
            'has no train_dataloader',
        ),
        (('tools/study.py', study, '--scale', 'demo', '--tasks', 'knn@nothing', '--dry-run'), 'no such config'),
        (('tools/study.py', misspelt, '--scale', 'demo', '--dry-run'), "for the scale 'demo'; did you mean 'dmo'?"),
        (('tools/study.py', study, '--collect', '--out', folder / 'nowhere'), 'no such folder'),
    ):
        with pytest.raises(SystemExit, match='2'):
            run_tool(*arguments)
        assert sentence in capsys.readouterr().err
    assert not (folder / 'nowhere').exists()


def test_plan_lists_missing_images(tmp_path, monkeypatch, run_tool, capsys):
    monkeypatch.chdir(tmp_path)
    study = DEMO.parents[1] / 'studies/ladder.yaml'
    run_tool('tools/study.py', study, '--tasks', 'linear', 'coco_fpn', '--dry-run')
    words = ' '.join(capsys.readouterr().out.split())
    assert words.endswith('missing images: data/coco/annotations, data/imagenet/train, data/imagenet/val')

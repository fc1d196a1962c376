"""Test projects.worth: verdicts for a known truth, bad labels, a second call, and the page."""

import dataclasses
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from harness.toy import NARROW
from PIL import Image
from torchvision.models import resnet18

from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.splits import image_names
from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction
from projects.worth import few_labels
from projects.worth import task as tasks
from projects.worth import worth as module
from projects.worth.few_labels import Verdict
from projects.worth.simulate import bands, verdict
from projects.worth.task import lay_out, read_task
from projects.worth.worth import worth

QUICK = dict(size=16, batch=32, workers=0, epochs=1, options=NARROW)


# For each case: the distances between the classes for the candidates with and without pre-training, the expected verdict ('' if
# there is none), and a verdict that must be rare. A larger distance means better features.
PLANTED = [((2,), (2, 0), '', 'pays'), ((4,), (2, 1), 'pays', 'keep'), ((1,), (3,), 'keep', 'pays')]


@pytest.mark.parametrize('own, rest, says, seldom', PLANTED)
def test_verdict_finds_gains_and_keeps_5_percent(own, rest, says, seldom):
    words = Counter(verdict(seed, own, rest).word for seed in range(40))
    assert words[seldom] <= 2
    assert not says or words[says] >= 36, f'fewer than 36 of 40 verdicts are {says}: {words}'


@pytest.mark.parametrize('labels', [160, 320])
def test_images_of_one_patient_are_not_many_witnesses(labels):
    words = Counter(verdict(seed, (2,), (2,), labels, together=8).word for seed in range(40))
    # If every image counted separately, 5 to 7 of the 40 studies would have each of these false verdicts.
    assert words['pays'] <= 2 and words['keep'] <= 3, f'too many false verdicts: {words}'


def test_undecided_names_the_labels_that_tell():
    verdicts = [verdict(seed, (2.3,), (2.0,)) for seed in range(30)]
    more_labels = np.median([result.more for result in verdicts if result.word == 'undecided'])
    more = Counter(
        verdict(seed, (2.3,), (2.0,), labels=4 * ((160 + int(more_labels)) // 4)).word
        for seed in range(20)
    )
    assert (
        more['pays'] + more['keep']
        >= 10
        > 20 * np.mean([result.word != 'undecided' for result in verdicts])
    ), f'{more_labels:.0f} more labels do not lead to more decisions: {more}'


def test_bands_and_saved_labels_cover_the_truth():
    curve_coverage, saving_coverage = bands((2.6,), (2.0,), studies=40)
    assert curve_coverage.min() > 0.8 and saving_coverage > 0.9


def test_classifier_equals_scikit_learns():
    from sklearn.linear_model import Ridge

    random = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = np.eye(3, 20)[y] + random.normal(size=(90, 20))
    fit, test = np.arange(60), np.arange(60, 90)
    errors = {}
    for strength in few_labels.STRENGTHS:
        left_out = [
            Ridge(60 * strength)
            .fit(np.delete(x[fit], i, 0), np.delete(np.eye(3)[y[fit]], i, 0))
            .predict(x[[i]])
            for i in fit
        ]
        errors[strength] = np.square(np.concatenate(left_out) - np.eye(3)[y[fit]]).sum()
    best = Ridge(60 * min(errors, key=errors.get)).fit(x[fit], np.eye(3)[y[fit]]).predict(x[test])
    assert (few_labels.classify_correctly(x, y, fit, test) == (best.argmax(1) == y[test])).all()


def test_labels_saved_are_read_off_the_curves():
    curves = np.array([[50.0, 60, 70, 80], [20, 40, 60, 70]])
    labels = np.array([1.0, 2, 4, 8])
    assert few_labels.saved_labels(curves, curves[None], labels, 0, 1) == pytest.approx(
        (4, 8, 8, 8)
    )
    assert few_labels.labels_needed(np.array([50.0, 100, 100]), np.array([1.0, 10, 50]), 100) == 10
    assert few_labels.saved_labels(curves + np.array([[30], [0]]), curves[None], labels, 0, 1)[
        :2
    ] == (
        1,
        np.inf,
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write ninety images of two classes, dark and bright. The first forty have labels."""
    folder = tmp_path / 'images'
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(90):
        pixels = random.integers(0, 128, (16, 16, 3), np.uint8) + np.uint8(127 * (number % 2))
        Image.fromarray(pixels).save(folder / f'{number:02}.png')
    table(tmp_path, [f'{number:02}.png,{["dark", "bright"][number % 2]}' for number in range(40)])
    return folder


def table(folder: Path, lines: list[str], encoding: str = 'utf-8') -> Path:
    path = folder / 'labels.csv'
    head, encoding = ('00.png,a', 'utf-8') if encoding == 'no heads' else ('file,class', encoding)
    path.write_text('\n'.join([head, *lines]), encoding)
    return path


@pytest.mark.parametrize(
    'lines, encoding, says',
    [
        (
            ['00.png,a', '1.png,b'],
            'utf-8',
            "1 names do not match exactly one image below .* first '1.png' .expected names such as '00.png'",
        ),
        (
            ['00.png,a', '00.png,b'],
            'utf-8',
            "00.png has two values .'a' and 'b'.; remove one of its lines",
        ),
        (
            ['00.png,a', './00.png,b', '01.png,a'],
            'utf-8',
            "00.png has two values .'a' and 'b'.; remove one of its lines",
        ),
        (['00.png,a', '01.png,a', '02.png,b'], 'utf-8', "class 'b' has only one labeled image"),
        (['00.png,a', '01.png,a'], 'utf-8', 'expected at least two classes .* found 1;'),
        (['00.png,Käfer', '01.png,b'], 'latin-1', 'cannot be read .* save it as CSV in UTF-8'),
        (
            ['02.png,a', '03.png,b'],
            'no heads',
            "first line contains the name of an image .'00.png'.; add a header line",
        ),
        (['00.png,Käfer', '01.png,b'], 'utf-16', 'cannot be read .* save it as CSV in UTF-8'),
    ],
)
def test_bad_labels_are_a_sentence(images, tmp_path, lines, encoding, says):
    with pytest.raises(UserError) as caught:
        worth(images, table(tmp_path, lines, encoding), tmp_path / 'out')
    assert re.search(says, str(caught.value)) and not (tmp_path / 'out').exists()


def test_folders_of_a_split_are_not_classes(images, tmp_path):
    for part in ('train', 'test'):
        (tmp_path / 'parts' / part).mkdir(parents=True)
        for number in range(3):
            shutil.copy(images / f'{number:02}.png', tmp_path / 'parts' / part)
    with raises_code('split-folders'):
        worth(tmp_path / 'parts', out=tmp_path / 'out')


def test_too_few_images_or_groups_are_an_early_error(images, tmp_path):
    labels, out = tmp_path / 'labels.csv', tmp_path / 'out'
    with pytest.raises(UserError, match="class 'bright' belong to one group"):
        worth(images, labels, out, groups=lambda name: str(int(name[:2]) % 2))
    with pytest.raises(UserError, match='each class has a single training image or group'):
        worth(
            images, table(tmp_path, [f'{number:02}.png,{number % 2}' for number in range(4)]), out
        )
    table(tmp_path, [f'{number:02}.png,{number % 2}' for number in range(40)])
    for inside in (images / 'out', images.parent):  # links in such a folder would be below `images`
        with pytest.raises(UserError, match='would be among the images of .*another folder'):
            worth(images, labels, inside)
    # The labeled images have three groups, and the test set contains only one of them.
    with pytest.raises(UserError, match='the test set is a single image or group'):
        worth(images, labels, out, groups=lambda name: str(max(1, int(name[:2]) // 10)), seed=2)
    for number in range(40, 80):
        (images / f'{number}.png').unlink()
    with pytest.raises(
        UserError, match='20 of the 50 images are held out.* the 30 others .* add 34 more'
    ):
        worth(images, labels, out)
    assert not out.exists()


def test_wrong_method_or_option_leaves_the_folder_free(images, tmp_path):
    for wrong in (dict(method='mocov9'), dict(options={'modell.x': 1})):
        with pytest.raises(UserError, match='did you mean'):
            worth(images, tmp_path / 'labels.csv', tmp_path / 'out', plan=True, **wrong)
        assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('wrong', ['size', 'epochs', 'minutes'])
def test_empty_request_is_an_early_error(images, tmp_path, wrong):
    with pytest.raises(UserError, match=f'{wrong}.*0'):
        worth(images, tmp_path / 'labels.csv', tmp_path / 'out', plan=True, **{wrong: 0})
    assert not (tmp_path / 'out').exists()


def test_a_class_that_cannot_be_read_is_a_sentence(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'pace', lambda cfg: 0.001)
    for number in range(0, 40, 2):
        (images / f'{number:02}.png').write_bytes(b'no image')
    with pytest.raises(UserError, match="too few images of class 'dark' can be read"):
        worth(images, tmp_path / 'labels.csv', tmp_path / 'out', **QUICK)


def test_images_that_are_all_alike_are_a_sentence(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'pace', lambda cfg: 0.001)
    for path in images.iterdir():
        Image.new('RGB', (16, 16)).save(path)
    with pytest.raises(UserError, match='all 40 labeled images are equal'):
        worth(images, tmp_path / 'labels.csv', tmp_path / 'out', **QUICK)


def test_second_call_reuses_results(images, tmp_path, monkeypatch):
    labels, out = tmp_path / 'labels.csv', tmp_path / 'out'
    task = read_task(images, labels, None, None, 0)
    broken, original, copy = (
        images / task.labelled[place] for place in (*task.pool[:2], task.test[0])
    )
    broken.write_bytes(b'no image')
    shutil.copy(original, copy)
    result = worth(images, labels, out, **QUICK)
    record, split = result.record, result.record['split']
    parts = split['learned_from'], split['tested_on'], record['look_alikes'], split['pretrained_on']
    assert parts == (19, 19, 1, 70) and record['unreadable'] == [broken.name]
    assert f'cannot be read and are left out, first {broken.name}' in result.page.read_text()
    assert [[Path(name).name for _, name in pair] for pair in record['pairs']] == [
        [copy.name, original.name]
    ]
    assert result.page.read_text().count('class="pair"') == 1
    assert result.record['candidates']['raw pixels']['accuracy'][-1] == 100
    assert 'Of 90 images, 40 have labels' in result.page.read_text()
    assert record['word'] == 'undecided' and record['compared'] in ('keep', 'undecided')
    length = '(1 epoch, 2 steps, crops of 16 pixels)'
    assert str(result).startswith('Inconclusive: ') and length in str(result)
    assert str(result).endswith(' ruling out pre-training requires at least 100 epochs.')
    assert f'Own pre-training: {length[1:-1]}. 1 epoch cannot show' in result.page.read_text()
    head = re.search(
        r'<h1>(.*?)</h1>\s*<p class="lead">(.*?)</p>', result.page.read_text()
    ).groups()
    assert ' '.join(head).replace('. ', ': ', 1).lower() == str(result).lower().replace('<', '&lt;')

    def never(*args, **how):
        raise AssertionError('a stored result is computed again')

    for place, name in ((module, 'pretrain'), (Extraction, 'batches'), (module, 'pace')):
        monkeypatch.setattr(place, name, never)
    assert worth(images, labels, out, **QUICK).record == result.record
    with pytest.raises(UserError, match='differs in how.seed'):
        worth(images, labels, out, seed=1, **QUICK)


def test_similar_names_train_in_separate_folders(images, tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(
        module, 'pretrain', lambda method, data, folder, *_, **__: folders.append(folder)
    )
    task = read_task(images, tmp_path / 'labels.csv', None, None, 0)
    starts = dict.fromkeys(('run-1.pth', 'run_1.pth'), 'x')
    comparison = module.Comparison(task, tmp_path / 'out', starts, 'mocov2plus', 0, None, 0, {})
    for name in starts:
        comparison.train_own(f'{module.OWN} from {name}', module.Plan({}, 16, 1, {}))
    assert len(set(folders)) == 2
    other = dataclasses.replace(
        comparison, starts={}, task=dataclasses.replace(task, unlabelled=task.unlabelled[1:])
    )
    assert other.identity() != dataclasses.replace(comparison, starts={}).identity()


def test_rgb_weights_embed_other_channels(tmp_path):
    state = {
        key: value for key, value in resnet18().state_dict().items() if not key.startswith('fc.')
    }
    torch.save(state, tmp_path / 'a.pth')
    module.register()
    network, normal, _ = module.network(tmp_path / 'a.pth', 5)
    assert len(normal['mean']) == 5 and network(torch.randn(2, 5, 32, 32))[-1].shape[1] == 512


def test_budget_chooses_the_largest_affordable_crops(images, tmp_path, monkeypatch):
    for path in images.iterdir():
        Image.open(path).resize((100, 120)).save(path)

    def as_its_pixels(cfg) -> float:
        """Return seconds per image, such that an epoch of 70 images takes 4.1 s with 64 x 64 pixels and 9.2 s with 96 x 96."""
        (size,) = {
            step['size']
            for view in cfg.train_dataloader.dataset.views
            for step in view
            if 'size' in step
        }
        return size**2 / 70 / 1000

    monkeypatch.setattr(module, 'pace', as_its_pixels)
    plan = worth(
        images, tmp_path / 'labels.csv', tmp_path / 'out', minutes=10, workers=0, plan=True
    )
    assert (plan.size, plan.epochs) == (64, int(0.8 * 600 / 4.096))
    assert plan.seconds['own pre-training'] == pytest.approx(plan.epochs * 4.096, rel=0.2)
    assert 'minutes in total' in str(plan) and str(plan).endswith('labels are drawn 50 times')


def test_small_budget_draws_labels_less_often(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'pace', lambda cfg: 0.001)
    # A draw takes 0.3 s for all three candidates.
    monkeypatch.setattr(module, 'pace_of_draws', lambda task: 0.1)
    for minutes, draws in ((1, 20), (0.1, 10), (100, 50), (None, 20)):
        out = tmp_path / str(minutes)
        plan = worth(images, tmp_path / 'labels.csv', out, minutes=minutes, plan=True, **QUICK)
        assert plan.draws == draws
    result = worth(images, tmp_path / 'labels.csv', tmp_path / '0.1', minutes=0.1, **QUICK)
    assert result.record['split']['draws'] == 10 and 'drawn 10 times' in result.page.read_text()


def test_group_is_on_one_side_of_the_split(images, tmp_path):
    task = read_task(images, tmp_path / 'labels.csv', None, r'^(\d)', 0)
    pool, test = (
        {task.labelled[place][0] for place in places} for places in (task.pool, task.test)
    )
    assert not pool & test and pool | test == set('0123')
    assert {name[0] for name in task.unlabelled} == set('012345678') - test
    # At 5.0 labels per class, which is half of the labels, each class has images of one of its two groups.
    for places in few_labels.draw(task.y, task.pool, 0, 20, task.groups)[5.0]:
        assert [len({*task.groups[places[task.y[places] == label]]}) for label in (0, 1)] == [1, 1]
    lay_out(task, tmp_path / 'links')
    images.rename(tmp_path / 'moved')
    lay_out(
        read_task(tmp_path / 'moved', tmp_path / 'labels.csv', None, r'^(\d)', 0),
        tmp_path / 'links',
    )
    # The images have been moved, so the links had to be replaced.
    assert all(link.is_file() for link in (tmp_path / 'links').iterdir())
    (tmp_path / 'moved').rename(images)
    table(tmp_path, [f'{number:02}.png,p{number // 10},{number % 2}' for number in range(40)])
    text = (tmp_path / 'labels.csv').read_text().replace('file,class', 'file,patient,ill')
    (tmp_path / 'labels.csv').write_text(text)
    assert read_task(images, tmp_path / 'labels.csv', None, None, 0, 'ill').classes == ['0', '1']


def test_folders_are_the_classes_without_a_table(images, tmp_path):
    for number, path in enumerate(sorted(images.iterdir())[:20]):
        (images / 'ab'[number % 2] / 'deep').mkdir(parents=True, exist_ok=True)
        path.rename(images / 'ab'[number % 2] / 'deep' / path.name)
    task = read_task(images, None, None, None, 0)
    assert task.classes == ['a', 'b'] and (len(task.labelled), len(task.unlabelled)) == (20, 80)
    lay_out(task, tmp_path / 'links')
    assert sorted(image_names(UnlabelledFolder(tmp_path / 'links'))) == sorted(task.unlabelled)


@pytest.mark.parametrize(
    'word, epochs, head',
    [
        ('keep', 99, 'Inconclusive'),
        ('keep', 100, 'No, keep raw pixels'),
        ('undecided', 99, 'Inconclusive'),
        ('undecided', 100, 'Inconclusive'),
        ('pays', 1, 'Pre-train your own'),
    ],
)
def test_answer_names_training_length(word, epochs, head):
    verdict = Verdict(
        word, module.OWN, module.RAW, 1.0, -1.0, 3.0, 50 if word == 'undecided' else 0
    )
    training = module.Training(32, epochs, 147)
    answer = module.sentence(verdict, 50.0, 49.0, 200, training)
    assert answer.partition(': ')[0] == head
    assert f'({module.count(epochs, "epoch")}, 147 steps, crops of 32 pixels)' in answer
    assert ('50 more labels' in answer) == (word == 'undecided')
    assert ('at least 100 epochs' in answer) == (epochs < 100 and word != 'pays')
    assert module.answer_word(verdict, training) == (
        'undecided' if head == 'Inconclusive' else word
    )


def test_unmet_budget_is_stated(images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, 'pace', lambda cfg: 1.0)  # an epoch takes 70 s
    settings = dict(QUICK, epochs=None, minutes=0.5)
    plan = worth(images, tmp_path / 'labels.csv', tmp_path / 'out', plan=True, **settings)
    assert plan.epochs == 1
    assert re.search(
        r'remark: the plan takes 1\.\d+ minutes, more than the budget of 0.5', str(plan)
    )
    assert 'remark: 1 epoch cannot show that pre-training does not pay; 100 epochs can' in str(plan)
    result = worth(images, tmp_path / 'labels.csv', tmp_path / 'out', **settings)
    assert capsys.readouterr().err.count('more than the budget of 0.5') == 1
    assert result.page.read_text().count('more than the budget of 0.5') == 1
    assert not module.Plan(dict(minutes=2), 16, 100, dict(own=100.0)).remarks


@pytest.mark.parametrize('minutes', [float('inf'), float('nan'), '5', -1])
def test_bad_minutes_raise(images, tmp_path, minutes):
    with pytest.raises(UserError) as caught:
        worth(images, tmp_path / 'labels.csv', tmp_path / 'out', minutes=minutes, plan=True)
    assert caught.value.code == 'bad-minutes'


def test_look_alikes_of_other_classes_are_tested_on(images, tmp_path):
    labels = tmp_path / 'labels.csv'
    task = read_task(images, labels, None, None, 0)
    source = task.pool[0]
    same, other = (
        next(place for place in task.test if (task.y[place] == task.y[source]) == equal)
        for equal in (1, 0)
    )
    for place in (same, other):
        shutil.copy(images / task.labelled[source], images / task.labelled[place])
    remaining, record = tasks.testable(task, np.arange(len(task.y))[:, None].astype(float), 0)
    assert same not in remaining.test and other in remaining.test
    assert (record['look_alikes'], record['conflicts']) == (1, 1)
    assert [[Path(name).name for _, name in pair] for pair in record['conflict_pairs']] == [
        [task.labelled[other], task.labelled[source]]
    ]


def test_label_conflicts_are_on_the_page(images, tmp_path):
    labels = tmp_path / 'labels.csv'
    task = read_task(images, labels, None, None, 0)
    other = next(place for place in task.test if task.y[place] != task.y[task.pool[0]])
    shutil.copy(images / task.labelled[task.pool[0]], images / task.labelled[other])
    page = worth(images, labels, tmp_path / 'out', **QUICK).page.read_text()
    assert '1 test images nearly equal a training image that has another label' in page
    assert page.count('class="pair"') == 1 and task.labelled[other] in page


def test_unlabeled_images_without_a_group_are_left_out(images, tmp_path):
    lines = [f'{number:02}.png,{number % 2},p{number // 4}' for number in range(88)]
    (tmp_path / 'groups.csv').write_text('\n'.join(['file,class,patient', *lines]))
    groups = dict(csv=tmp_path / 'groups.csv', column='patient')
    task = read_task(images, tmp_path / 'labels.csv', None, groups, 0)
    assert task.ungrouped == 2
    assert not {'88.png', '89.png'} & set(task.unlabelled)
    (tmp_path / 'groups.csv').write_text('\n'.join(['file,class,patient', *lines[1:]]))
    with pytest.raises(UserError) as caught:
        read_task(images, tmp_path / 'labels.csv', None, groups, 0)
    assert caught.value.code == 'no-group'

"""Pages of every kind, with hostile names, in a real browser."""

import json
import re
import shutil
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from harness import toy
from mmengine import Config
from PIL import Image
from study.pages.planted import crossed, drawn_as_lines, ladder, rescaled, study
from study.pages.test_claims_page import finished_ladder
from test_evaluation_page import leave
from test_health_page import healthy, write_scalars

from mmairl.analysis.geometry import STRENGTHS
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config
from mmairl.engine.replay_step import StepRecord
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features
from mmairl.evaluation.protocol import Result
from mmairl.evaluation.sets import evaluation_sets
from mmairl.registry import DATASETS
from mmairl.report.analysis_pages import (
    add_invariance,
    cka_page,
    geometry_page,
    measures_page,
    norms_page,
)
from mmairl.report.charts import chart as curve_chart
from mmairl.report.compare_page import write_compare_page
from mmairl.report.demo_page import SCORE, draw_demo
from mmairl.report.evaluation_page import write_evaluation_page
from mmairl.report.health_page import write_health_page
from mmairl.report.map_page import map_images
from mmairl.report.page import Page
from mmairl.report.replay_page import write_replay_page
from mmairl.report.table import html_table
from mmairl.report.views_page import write_views_page
from mmairl.study.pages.claims_page import write_claims_page
from mmairl.study.pages.index_page import write_studies_page
from mmairl.study.pages.study_page import write_study_page

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
sync_api = pytest.importorskip(
    'playwright.sync_api', reason='playwright, which drives a browser, is not installed (pip install playwright)'
)
axe = pytest.importorskip(
    'axe_playwright_python',
    reason='axe, which checks pages in a browser, is not installed (pip install axe-playwright-python)',
)
# The unit is milliseconds. The limit is high because the machine may be busy.
TIMEOUT = 600_000
AXE = Path(axe.__file__).with_name('axe.min.js')
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason='there is no browser on the path (apt-get install chromium)')

# This name seems to end in .png, because it is displayed from right to left.
TURNED = '\u202egnp.exe'
HOSTILE = f'<img src=x onerror=alert(1)>"\'</script><!--\n{{{{ 7 * 7 }}}} {TURNED} $x$ '
LONG = HOSTILE + 'w' * 5000


def hostile(value):
    """Return a copy of the record with hostile names, which still differ from each other."""
    if isinstance(value, dict):
        return {
            key: hostile(part) if key in ('runs', 'rows', 'versions') else named(key, part)
            for key, part in value.items()
        }
    return [hostile(part) for part in value] if isinstance(value, list) else value


def named(key: str, value):
    harmed = ('title', 'question', 'reading', 'factor', 'config', 'error', 'git', 'hardware', 'config_text')
    return (
        f'{LONG}{value}' if key in harmed and value is not None else f'{HOSTILE}{value}' if key == 'folder' else value
    )


def rows(page) -> list[str]:
    return page.eval_on_selector_all(
        'table:first-of-type tbody tr:not([hidden]) th', 'found => found.map(e => e.innerText)'
    )


def studies(folder: Path) -> Path:
    for name, record in (('study', crossed()), ('hostile', hostile(drawn_as_lines()))):
        (folder / name).mkdir()
        (folder / name / 'study.json').write_text(json.dumps(record))
    (folder / 'study' / 'page.html').touch()
    return write_studies_page(folder)


def claims(folder: Path) -> Path:
    finished_ladder(folder, gain=4.0)
    return write_claims_page(folder, folder / 'claims.html')


def health(folder: Path) -> Path:
    run = write_scalars(folder / 'run <b> "x"', *(healthy(i, 0.9 / i) for i in (1, 2, 3)))
    return write_health_page(run, folder / 'health.html')


def evaluation(folder: Path) -> Path:
    for place, name in enumerate((LONG, 'plain', 'other', 'last')):
        leave(folder, str(place), name, {'k-NN': 50.0 + place, HOSTILE: 9.5 + place})
    return write_evaluation_page(folder, [('k-NN', HOSTILE)])


def compare(folder: Path) -> Path:
    runs = [folder / str(seed) / HOSTILE.replace('/', '\u2215') for seed in (0, 1)]
    for seed, run in enumerate(runs):
        write_scalars(run, *(dict(healthy(i, 0.9 / i), epoch=i, time=0.5) for i in (1, 2, 3)))
        config = f'a = dict(seed={seed}, name={LONG + str(seed)!r})'
        (run / '20260101_000000' / 'vis_data' / 'config.py').write_text(config)
    return write_compare_page(runs, folder / 'compare.html')


def image_map(folder: Path) -> Path:
    """Write a map of thirty pictures and a copy of one picture. Names of files and classes are as hostile as possible."""
    random, kinds = np.random.default_rng(0), ('plain', HOSTILE.replace('/', '\u2215'))
    for i in range(30):
        (path := folder / 'images' / kinds[i % 2] / f'{i:02} <b> {TURNED}\n"\'.png').parent.mkdir(
            parents=True, exist_ok=True
        )
        Image.fromarray(random.integers(0, 255, (4, 4, 3), dtype=np.uint8)).resize((32, 32)).save(path)
    shutil.copy(path, path.with_name(LONG[-200:] + '.png'))
    torch.save(torchvision.models.resnet18().state_dict(), folder / 'epoch_1.pth')
    return map_images(folder / 'epoch_1.pth', folder / 'images', folder / 'map.html', size=64, patches=8)


ANALYSES = ('norms', 'cka', 'geometry', 'measures')


def few_shapes() -> Config:
    counts = {'train_dataloader.dataset.count': 40, 'evaluation.train.count': 40, 'evaluation.test.count': 40}
    return load_config(str(toy.CONFIGS / 'demo/mocov2plus_shapes.py'), counts)


def demo(folder: Path) -> Path:
    """Write the page of the demo for random features."""
    cfg = few_shapes()
    cfg.work_dir = str(write_scalars(folder / 'run', *(healthy(i, 0.9 / i) for i in (1, 2, 3))))
    data = tuple(dataset for _, dataset in evaluation_sets(cfg).values())
    results = [Result(name, {SCORE: 40.0 + i, 'logistic regression': 50.0}, 1.0) for i, name in enumerate(('a', LONG))]
    features = {result.subject: [Features(torch.randn(40, 9), data[0].labels)] * 2 for result in results}
    page = draw_demo(cfg, data, results, features, 0)
    similarities = {name: {'crop': [1.0] * len(STRENGTHS), HOSTILE: [0.2] * len(STRENGTHS)} for name in (LONG, 'plain')}
    add_invariance(page, similarities)
    page.add(LONG, LONG, html_table(['a', LONG], [(LONG, ['0.50', '1.00'])], heat=True), LONG)
    return page.write(folder / 'demo.html')


def analysis(instrument: str, folder: Path) -> Path:
    """Write the page that an instrument of tools/analyze.py creates for two untrained networks."""
    cfg, subjects = few_shapes(), {}
    for seed, name in enumerate((LONG, 'plain')):
        network = load_backbone(cfg, None, seed=seed)
        state = {f'backbone.{key}': value for key, value in network.state_dict().items()}
        torch.save(dict(state_dict=state), folder / f'{seed}.pth')
        subjects[name] = str(folder / f'{seed}.pth'), 'student'
    if instrument == 'norms':
        return norms_page({name: read_backbone(*subject) for name, subject in subjects.items()}, folder)
    if instrument == 'measures':
        return measures_page(subjects, cfg, 40, {}, False, folder)
    images = Images(cfg, 40)
    if instrument == 'cka':
        return cka_page(subjects, images, 'pooled', False, False, folder)
    return geometry_page(subjects, images, False, folder, 0, {'plain': {'alignment': 0.25, 'top1': 71.9}})


def replay(folder: Path) -> Path:
    dataset = DATASETS.build(few_shapes().train_dataloader.dataset)
    record = StepRecord(
        iteration=7,
        items=[(0, 0), (1, 0)],
        dataset=dataset,
        views=[torch.rand(2, 3, 28, 28)] * 2,
        values={'loss': 1.0, LONG: 2.0},
        losses=torch.tensor([1.0, 2.0]),
        gradients=torch.tensor([0.1, 0.2]),
        nearest=[[(0.5, 3)], []],
    )
    parameters = [[LONG, 'RandomFlip']] * 2
    path = folder / 'replay.html'
    return write_replay_page(path, [record, record], LONG, per_image=True, views=parameters)


# Each function writes a page of one kind into a folder.
KINDS = {
    'study': lambda folder: write_study_page(crossed(), folder / 'page.html'),
    'three rows': lambda folder: write_study_page(study(ladder()['rows'][:3]), folder / 'page.html'),
    'rescaled': lambda folder: write_study_page(rescaled(), folder / 'page.html'),
    'hostile study': lambda folder: write_study_page(hostile(drawn_as_lines()), folder / 'page.html'),
    'studies': studies,
    'claims': claims,
    'health': health,
    'evaluation': evaluation,
    'compare': compare,
    'map': image_map,
    'demo': demo,
    'replay': replay,
    'views': lambda folder: write_views_page(few_shapes(), folder / 'views.html'),
    **{instrument: partial(analysis, instrument) for instrument in ANALYSES},
}


@pytest.fixture(scope='module')
def page_of(tmp_path_factory):
    """Return a function that returns the page of a kind. The page is written when the first test asks for it."""
    return cache(lambda kind: KINDS[kind](tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope='module')
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'], timeout=TIMEOUT)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Return a function that opens a page and records its requests, errors and copied texts."""
    contexts = []

    def opened(path: Path, view: str = '', **options):
        context = browser.new_context(**{'viewport': dict(width=1000, height=800), **options})
        context.set_default_timeout(TIMEOUT)
        contexts.append(context)
        page = context.new_page()
        page.asked, page.faults, page.copied = [], [], []
        page.expose_function('copied', lambda text: page.copied.append(text))
        page.add_init_script(
            'Object.defineProperty(navigator, "clipboard", {value: {writeText: text => copied(text),'
            'write: async ([item]) => copied(`${item.types} ${(await item.getType(item.types[0])).size}`)}})'
        )
        page.on('console', lambda message: page.faults.append(message.text))
        page.on('pageerror', lambda error: page.faults.append(str(error)))
        page.on('dialog', lambda dialog: page.faults.append(dialog.message))
        page.on('request', lambda request: page.asked.append(request.url))
        page.goto(f'{path.as_uri()}{view}')
        return page

    yield opened
    for context in contexts:
        context.close()


# Tests with the fixture `kind` open only these kinds in `make test`, and all kinds in `make
# test-all`.
QUICK = ('map', 'demo', 'norms')


@pytest.fixture(params=[pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS])
def kind(request) -> str:
    return request.param


@pytest.mark.parametrize('scheme, width', [('light', 1000), ('dark', 390)])
def test_page_is_safe_and_accessible(page_of, open_page, kind, scheme, width):
    """The page opens without an error, loads no other file, shows names as text, and passes axe."""
    page = open_page(page_of(kind), color_scheme=scheme, viewport=dict(width=width, height=800))
    assert page.faults == []
    assert [url for url in page.asked if not url.startswith('data:')] == [page_of(kind).as_uri()]
    assert page.locator('img[src=x]').count() == 0
    assert page.locator('script:not([type])').count() == 1
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    page.evaluate(AXE.read_text())
    violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")['violations']
    serious = [rule for rule in violations if rule['impact'] in ('serious', 'critical')]
    assert [(rule['id'], rule['nodes'][0]['html'][:200]) for rule in serious] == []


def test_page_fits_on_paper(page_of, open_page, kind):
    page = open_page(page_of(kind))
    page.emulate_media(media='print', color_scheme='light')
    # This is the width of A4 without margins, in CSS pixels.
    page.set_viewport_size(dict(width=688, height=1000))
    assert page.locator('.tools:visible').count() == 0
    assert page.evaluate('document.documentElement.scrollWidth') <= 688


def test_page_works_without_a_script(page_of, open_page, kind):
    page = open_page(page_of(kind), java_script_enabled=False)
    assert page.locator('button').count() == 0
    assert page.locator('table, .still, img').count()


def test_injected_script_does_not_run(page_of, open_page):
    page = open_page(page_of('norms'))
    page.evaluate(
        'document.body.append(Object.assign(document.createElement("script"), {textContent: "window.bad = 1"}))'
    )
    assert page.evaluate('window.bad') is None
    assert 'Content Security Policy' in page.faults[-1]


def tip(chart) -> list[str]:
    """Return the lines of a chart's tooltip."""
    return chart.locator('.tip > span').all_inner_texts()


def test_chart_shows_values_by_keyboard(page_of, open_page):
    page = open_page(page_of('health'))
    chart = page.locator('.curves').first
    chart.scroll_into_view_if_needed()
    chart.locator('canvas').wait_for()
    chart.focus()
    lines = []
    for key in ('ArrowRight', 'ArrowRight', 'End', 'Home'):
        page.keyboard.press(key)
        lines.append(tip(chart))
    values = ((50, '0.9'), (100, '0.45'), (150, '0.3'), (50, '0.9'))
    assert lines == [[f'iteration {step}', value] for step, value in values]
    page.keyboard.press('Escape')
    assert tip(chart) == []


@pytest.mark.parametrize('width', [1000, 390])
def test_values_of_fifty_lines_are_in_the_window(open_page, tmp_path, width):
    series = {f'study/row {number}/seed_0': ([1, 2], [1.0 * number, 2.0]) for number in range(50)}
    path = Page('Fifty', wide=True).add('Curves', '', curve_chart(series, 'loss', 'step')).write(tmp_path / 'page.html')
    page = open_page(path, viewport=dict(width=width, height=800))
    chart = page.locator('.curves').first
    chart.scroll_into_view_if_needed()
    chart.locator('canvas').wait_for()
    chart.focus()
    page.keyboard.press('ArrowRight')
    boxes = [line.bounding_box() for line in chart.locator('.tip > span').all()]
    assert len(boxes) == 51, 'the chart does not show the step and a value for each of the 50 lines'
    for box in boxes:
        assert 0 <= box['x'] <= width - box['width']
        assert 0 <= box['y'] <= 800 - box['height']


def test_boxes_that_hide_lines_have_names(open_page, tmp_path):
    charts = [curve_chart({'': ([1, 2], [1.0, 2.0])}, 'loss', 'step')]
    charts.append(curve_chart({name: ([1, 2], [1.0, 2.0]) for name in ('stem', 'layer1')}, 'norm', 'step'))
    path = Page('Health').add('Curves', '', charts[0] + charts[1]).write(tmp_path / 'page.html')
    boxes = open_page(path).locator('.controls .lines label')
    assert [label.inner_text().strip() for label in boxes.all()] == ['stem', 'layer1']


def test_sorted_table_is_kept_in_the_address(page_of, open_page):
    page = open_page(page_of('evaluation'))
    head = page.get_by_role('button', name='Sort by k-NN')
    head.click()
    assert rows(page)[:2] == ['last', 'other']
    assert page.locator('[aria-sort=descending]').count() == 1
    page.get_by_role('searchbox').fill('L')
    assert rows(page)[0] == 'last'
    assert 'other' not in rows(page)
    seen = rows(page)
    page = open_page(page_of('evaluation'), page.url[page.url.index('#') :])
    assert rows(page) == seen
    assert page.get_by_role('searchbox').input_value() == 'L'


def test_map_selects_images_by_keyboard(page_of, open_page):
    page = open_page(page_of('map'))
    page.locator('canvas[role=application]:visible').focus()
    for key in ('ArrowRight', 'ArrowRight', 'Enter', ' ', 'ArrowLeft', ' ', '+'):
        page.keyboard.press(key)
    assert page.locator('.nearest').count() == 3
    assert '2 images in the list' in page.locator('.listed').inner_text()
    page.wait_for_url(re.compile('at2='))
    other = open_page(page_of('map'), page.url[page.url.index('#') :])
    assert '2 images in the list' in other.locator('.listed').inner_text()
    page.keyboard.press('Escape')
    assert page.locator('.nearest').count() == 0
    assert 'image=' not in page.url

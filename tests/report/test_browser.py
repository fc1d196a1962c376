"""Every kind of page as a reader has it: in a real browser, with names that mean harm."""

import base64
import csv
import io
import json
import re
import shutil
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from harness import toy
from mmengine import Config
from PIL import Image
from study.pages.test_study_page import crossed, drawn_as_lines, ladder, rescaled, study
from test_evaluation_page import leave
from test_health_page import healthy, write_scalars

from mmairl.analysis.geometry import STRENGTHS
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features
from mmairl.evaluation.protocol import Result
from mmairl.evaluation.sets import evaluation_sets
from mmairl.report.analysis_pages import add_invariance, cka_page, geometry_page, norms_page
from mmairl.report.compare_page import write_compare_page
from mmairl.report.demo_page import SCORE, draw
from mmairl.report.evaluation_page import write_evaluation_page
from mmairl.report.health_page import write_health_page
from mmairl.report.map_page import map_images
from mmairl.report.table import html_table
from mmairl.report.views_page import write_views_page
from mmairl.study.pages.index_page import write_studies_page
from mmairl.study.pages.study_page import write_study_page

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
sync_api = pytest.importorskip('playwright.sync_api', reason='no browser can be driven (pip install playwright)')
axe = pytest.importorskip(
    'axe_playwright_python', reason='nothing checks a browser page (pip install axe-playwright-python)'
)
AXE = Path(axe.__file__).with_name('axe.min.js')
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason='there is no browser on the path (apt-get install chromium)')

TURNED = '\u202egnp.exe'  # shown from right to left, it ends in .png
HOSTILE = f'<img src=x onerror=alert(1)>"\'</script><!--\n{{{{ 7 * 7 }}}} {TURNED} $x$ '
LONG = HOSTILE + 'w' * 5000


def hostile(value):
    """The record with each name in it made hostile, and still its own."""
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
    """Thirty pictures of which one is there twice, the names of files and classes as bad as a disk lets them be."""
    random, kinds = np.random.default_rng(0), ('plain', HOSTILE.replace('/', '\u2215'))
    for i in range(30):
        (path := folder / 'images' / kinds[i % 2] / f'{i:02} <b> {TURNED}\n"\'.png').parent.mkdir(
            parents=True, exist_ok=True
        )
        Image.fromarray(random.integers(0, 255, (4, 4, 3), dtype=np.uint8)).resize((32, 32)).save(path)
    shutil.copy(path, path.with_name(LONG[-200:] + '.png'))
    torch.save(torchvision.models.resnet18().state_dict(), folder / 'epoch_1.pth')
    return map_images(folder / 'epoch_1.pth', folder / 'images', folder / 'map.html', size=64, patches=8)


def few_shapes() -> Config:
    counts = {'train_dataloader.dataset.count': 40, 'evaluation.train.count': 40, 'evaluation.test.count': 40}
    return load_config(str(toy.CONFIGS / 'demo/mocov2plus_shapes.py'), counts)


def demo(folder: Path) -> Path:
    """The demo's page over features that nobody has trained."""
    cfg = few_shapes()
    cfg.work_dir = str(write_scalars(folder / 'run', *(healthy(i, 0.9 / i) for i in (1, 2, 3))))
    data = tuple(dataset for _, dataset in evaluation_sets(cfg).values())
    results = [Result(name, {SCORE: 40.0 + i, 'logistic regression': 50.0}, 1.0) for i, name in enumerate(('a', LONG))]
    features = {result.subject: [Features(torch.randn(40, 9), data[0].labels)] * 2 for result in results}
    page = draw(cfg, data, results, features, 0)
    kept = {name: {'crop': [1.0] * len(STRENGTHS), HOSTILE: [0.2] * len(STRENGTHS)} for name in (LONG, 'plain')}
    add_invariance(page, kept)
    page.add(LONG, LONG, html_table(['a', LONG], [(LONG, ['0.50', '1.00'])], heat=True), LONG)
    return page.write(folder / 'demo.html')


def analysis(instrument: str, folder: Path) -> Path:
    """A page of tools/analyze.py about two untrained networks."""
    cfg, subjects = few_shapes(), {}
    for seed, name in enumerate((LONG, 'plain')):
        network = load_backbone(cfg, None, seed=seed)
        state = {f'backbone.{key}': value for key, value in network.state_dict().items()}
        torch.save(dict(state_dict=state), folder / f'{seed}.pth')
        subjects[name] = str(folder / f'{seed}.pth'), 'student'
    if instrument == 'norms':
        return norms_page({name: read_backbone(*subject) for name, subject in subjects.items()}, folder)
    images = Images(cfg, 40)
    if instrument == 'cka':
        return cka_page(subjects, images, 'pooled', False, False, folder)
    return geometry_page(subjects, images, False, folder, 0, {'plain': {'alignment': 0.25, 'top1': 71.9}})


# Each kind of page, by its name, as a function of the folder that it is written to.
KINDS = {
    'study': lambda folder: write_study_page(crossed(), folder / 'page.html'),
    'three rows': lambda folder: write_study_page(study(ladder()['rows'][:3]), folder / 'page.html'),
    'rescaled': lambda folder: write_study_page(rescaled(), folder / 'page.html'),
    'hostile study': lambda folder: write_study_page(hostile(drawn_as_lines()), folder / 'page.html'),
    'studies': studies,
    'health': health,
    'evaluation': evaluation,
    'compare': compare,
    'map': image_map,
    'demo': demo,
    'views': lambda folder: write_views_page(few_shapes(), folder / 'views.html'),
    **{instrument: partial(analysis, instrument) for instrument in ('norms', 'cka', 'geometry')},
}


@pytest.fixture(scope='module')
def page_of(tmp_path_factory):
    """The page of a kind, written when a test first asks for it."""
    return cache(lambda kind: KINDS[kind](tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope='module')
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """A page that is open, what it has asked for, and what has gone wrong in it."""
    contexts = []

    def opened(path: Path, view: str = '', **options):
        context = browser.new_context(**{'viewport': dict(width=1000, height=800), **options})
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


QUICK = ('map', 'demo', 'norms')  # which have what the others have; make test-all opens all


@pytest.mark.parametrize('kind', [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow) for key in KINDS])
def test_any_page_is_safe_and_for_everybody(page_of, open_page, kind):
    """It asks for nothing, names are text, and it is read in light, in the dark on a phone, by keyboard and on paper."""
    page = open_page(page_of(kind))
    assert page.faults == [] and [url for url in page.asked if not url.startswith('data:')] == [page_of(kind).as_uri()]
    assert page.locator('img[src=x]').count() == 0 and page.locator('script:not([type])').count() == 1
    if kind not in (
        'study',
        'three rows',
        'rescaled',
        'health',
        'views',
        'cka',
    ):  # which have no such name, or cut it short
        assert TURNED in page.inner_text('main') and '{{ 7 * 7 }}' in page.inner_text('main')
    assert page.locator('.names span').count() > 1 or kind != 'norms', 'a wide chart names its lines'
    for _ in range(10):
        page.keyboard.press('Tab')
        told = page.evaluate(
            '(e => [e.tagName, getComputedStyle(e).outlineStyle, e.getBoundingClientRect().width])(document.activeElement)'
        )
        assert told[0] == 'BODY' or (told[1] != 'none' and told[2] > 0), 'the focus is seen, and comes round again'
    for scheme, width in (('light', 1000), ('dark', 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(dict(width=width, height=800))
        assert page.evaluate('document.documentElement.scrollWidth') <= width
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")['violations']
        serious = [rule for rule in found if rule['impact'] in ('serious', 'critical')]
        assert [(rule['id'], rule['nodes'][0]['html'][:200]) for rule in serious] == []
    page.emulate_media(media='print', color_scheme='light')
    assert page.locator('.tools:visible').count() == 0
    page.set_viewport_size(dict(width=688, height=1000))  # A4 less its margins, in CSS pixels
    assert page.evaluate('document.documentElement.scrollWidth') <= 688
    bare = open_page(page_of(kind), java_script_enabled=False)
    assert bare.locator('button').count() == 0 and bare.locator('table, .still, img').count(), (
        'it shows all without a script'
    )
    # A page that another program has put a script into still runs its own alone.
    assert page.faults == []
    page.evaluate(
        'document.body.append(Object.assign(document.createElement("script"), {textContent: "window.bad = 1"}))'
    )
    assert page.evaluate('window.bad') is None and 'Content Security Policy' in page.faults[-1]


def tip(chart) -> list[str]:
    """The lines of a chart's tip."""
    return chart.locator('.tip > span').all_inner_texts()


def test_a_chart_tells_all_values_at_one_step_by_keyboard_pointer_and_finger(page_of, open_page):
    page = open_page(page_of('health'))
    chart = page.locator('.curves').first
    chart.scroll_into_view_if_needed()
    chart.locator('canvas').wait_for()
    chart.focus()
    told = []
    for key in ('ArrowRight', 'ArrowRight', 'End', 'Home'):
        page.keyboard.press(key)
        told.append(tip(chart))
    assert told == [
        [f'iteration {step}', value] for step, value in ((50, '0.9'), (100, '0.45'), (150, '0.3'), (50, '0.9'))
    ]
    page.keyboard.press('ArrowRight')
    box = chart.locator('.u-cursor-pt').last.bounding_box()
    page.keyboard.press('Escape')
    assert tip(chart) == []
    page.mouse.move(box['x'] + 9, box['y'] + 9)
    assert tip(chart) == ['iteration 100', '0.45']
    many = page.locator('.curves', has_text='gradient norm by stage')
    many.focus()
    many.locator('canvas').wait_for()
    for key, run in (
        ('ArrowRight', 'stem'),
        ('ArrowDown', 'layer1'),
        ('ArrowDown', 'projector'),
        ('ArrowUp', 'layer1'),
    ):
        page.keyboard.press(key)
        assert tip(many)[0] == 'iteration 50' and len(tip(many)) == 4, 'every line is told'
        assert many.locator('.best').inner_text().startswith(f'{run}: 0.01')
    phone = open_page(page_of('health'), viewport=dict(width=390, height=800), has_touch=True, is_mobile=True)
    chart = phone.locator('.curves').first
    chart.scroll_into_view_if_needed()
    chart.locator('canvas').wait_for()
    chart.locator('.u-over').tap()
    phone.wait_for_timeout(300)
    assert tip(chart) == ['iteration 100', '0.45'], 'a tap is answered, and the answer stays'


def test_one_measurement_is_a_mark(open_page, tmp_path):
    page = open_page(write_health_page(write_scalars(tmp_path / 'run', healthy(1, 0.9)), tmp_path / 'health.html'))
    canvas = page.locator('.curves canvas').first
    canvas.wait_for()
    inked = """e => {
        const { data } = e.getContext('2d').getImageData(0, 0, e.width, e.height);
        return data.filter((blue, i) => i % 4 === 2 && blue > 180 && data[i - 2] < 80 && data[i + 1] > 200).length;
    }"""
    assert canvas.evaluate(inked) > 10


def test_the_worth_of_rescaling_stands_above_the_bar_of_the_curves_and_all_else(page_of, open_page):
    page = open_page(page_of('rescaled'))
    parts = (
        'section:has-text("NormRescale is worth")',
        '.controls',
        'section:has-text("rates of fine-tuning")',
        '.tiles',
    )
    tops = [page.locator(part).first.bounding_box()['y'] for part in parts]
    assert tops == sorted(tops) and page.locator('section').first.locator('table').count() == 1


@pytest.mark.parametrize('width', [1280, 400])
def test_names_of_a_wide_chart_neither_overlap_nor_are_cut(page_of, open_page, width):
    names = open_page(page_of('rescaled'), viewport=dict(width=width, height=800)).locator('.names').first
    frame, *boxes = names.evaluate('e => [e, ...e.children].map(e => e.getBoundingClientRect())')
    assert len(boxes) == 11 and all(frame['left'] <= box['left'] and box['right'] <= frame['right'] for box in boxes)
    assert frame['right'] <= width
    assert all(one['right'] <= two['left'] or one['bottom'] <= two['top'] for one, two in pairwise(boxes))


def test_verdicts_are_whole_in_a_window_of_1280_pixels(page_of, open_page):
    page = open_page(page_of('rescaled'), viewport=dict(width=1280, height=800))
    tables = page.locator('.scroll:has(.verdict)')
    assert tables.evaluate_all('found => found.map(e => e.scrollWidth - e.clientWidth)') == [0, 0]


def test_steps_along_a_budget_are_whole_numbers(page_of, open_page):
    page = open_page(page_of('rescaled'))
    page.evaluate("""() => {
        const canvas = CanvasRenderingContext2D.prototype, write = canvas.fillText;
        window.written = [];
        canvas.fillText = function (text, ...at) { written.push(text); write.call(this, text, ...at); };
    }""")
    chart = page.locator('.curves', has_text='best held-out score')
    chart.scroll_into_view_if_needed()
    chart.locator('canvas').wait_for()
    written = page.evaluate('written')
    first = written.index('budget, in runs of the cheapest row') + 1
    assert written[first : first + 4] == [*'1234'] and len(written[first + 4]) == 2  # a score


def test_lines_are_hidden_smoothed_and_zoomed_for_all_charts_at_once(page_of, open_page):
    page = open_page(page_of('compare'), viewport=dict(width=1200, height=900))
    chart = page.locator('.curves', has_text='spread of the keys')
    chart.focus()
    chart.locator('canvas').wait_for()
    page.get_by_label('smoothing').fill('0.5')
    page.wait_for_url(re.compile('smooth=0.5'))
    chart.focus()
    page.keyboard.press('End')
    # 0.9, 0.45, 0.3 with weights of 1/8, 1/4 and 1/2, over their sum
    assert tip(chart)[0] == 'smoothed, epoch 3' and tip(chart)[1].endswith(': 0.42857') and len(tip(chart)) == 3
    page.locator('.controls select').select_option('hours of training')
    page.locator('.lines input').first.uncheck()
    canvas = chart.locator('.u-over').bounding_box()
    page.mouse.move(canvas['x'] + 0.3 * canvas['width'], canvas['y'] + 50)
    page.mouse.down()
    page.mouse.move(canvas['x'] + 0.8 * canvas['width'], canvas['y'] + 50, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile('zoom='))
    again = open_page(page_of('compare'), page.url[page.url.index('#') :], viewport=dict(width=1200, height=900))
    again.locator('.lines').wait_for()
    chosen = [again.get_by_label('smoothing').input_value(), again.locator('.controls select').input_value()]
    assert chosen == ['0.5', 'hours of training'] and not again.locator('.lines input').first.is_checked()
    again.get_by_role('button', name='Show the whole range').click()
    assert 'zoom=' not in again.url and 'hide=' in again.url


def test_tables_sort_and_filter_and_the_address_shows_the_same_again(page_of, open_page):
    page = open_page(page_of('evaluation'))
    head = page.get_by_role('button', name='Sort by k-NN')
    head.click()
    assert rows(page)[:2] == ['last', 'other'] and page.locator('[aria-sort=descending]').count() == 1
    head.press('Enter')
    assert rows(page)[1:] == ['plain', 'other', 'last']
    page.get_by_role('searchbox').fill('L')
    assert rows(page)[-1] == 'last' and 'other' not in rows(page)
    seen, address = rows(page), page.url
    page = open_page(page_of('evaluation'), address[address.index('#') :])
    assert rows(page) == seen and page.get_by_role('searchbox').input_value() == 'L'
    head = page.get_by_role('button', name='Sort by k-NN')
    head.click()
    assert 'sort0' not in page.url and 'rows0=L' in page.url  # as it was, and the filter stays


def test_a_row_is_marked_in_each_table_by_pointer_and_by_keyboard(page_of, open_page):
    page = open_page(page_of('study'))
    page.locator('.study tbody th').nth(2).hover()
    marked = page.locator('tr.marked th').all_inner_texts()
    assert len(marked) >= 2 and all('plus_symmetric_loss' in name for name in marked)
    page.mouse.move(0, 0)
    assert page.locator('.marked').count() == 0
    page.locator('.scroll.study').focus()
    page.keyboard.press('ArrowDown')
    page.keyboard.press('ArrowDown')
    assert 'plus_syncbn' in page.locator('tr.marked th').first.inner_text()


def test_one_click_copies_a_table_or_a_chart(page_of, open_page):
    page = open_page(page_of('evaluation'))
    for name in ('CSV', 'Markdown', 'LaTeX', 'PNG'):
        page.get_by_role('button', name=f' as {name}').first.click()
        page.locator('button[data-done]', has_text=name).wait_for()
    csv, markdown, latex, png = page.copied
    lines = csv.splitlines()
    assert lines[0].startswith('name,k-NN,"') and lines[2] == 'plain,51.0,10.5,1.0' and len(lines) == 5
    assert {line.replace('\\|', '').count('|') for line in markdown.splitlines()} == {5} and '&lt;img' in markdown
    assert r'plain & 51.0 & 10.5 & 1.0 \\' in latex and r'\{\{ 7 * 7 \}\}' in latex and r'\$x\$' in latex
    kind, size = png.split()
    assert kind == 'image/png' and int(size) > 5000
    # Where the clipboard is shut, a file is saved.
    page.evaluate('void (navigator.clipboard.writeText = () => Promise.reject())')
    with page.expect_download() as download:
        page.get_by_role('button', name=' as CSV').first.click()
    assert download.value.suggested_filename == 'table.csv'


def dot(page, image: int, map: int = 2) -> tuple[float, float]:
    """The place of an image on the screen, by the page's own data."""
    places = json.loads(page.locator('#data').text_content())['maps'][map]['places']
    x, y = np.frombuffer(base64.b64decode(places), '<u2')[2 * image : 2 * image + 2] / 65535
    box = page.locator('canvas[role=application]:visible').bounding_box()
    return box['x'] + box['width'] * ((x - 0.5) * 0.92 + 0.5), box['y'] + box['height'] * ((0.5 - y) * 0.92 + 0.5)


def again(page_of, open_page, page, **options):
    """The map, by the address that a page has come to."""
    return open_page(page_of('map'), page.url[page.url.index('#') :], **options)


def test_a_map_is_switched_shows_an_image_and_its_nearest_and_a_link_names_the_image(page_of, open_page):
    page = open_page(page_of('map'), viewport=dict(width=1200, height=1100))
    data = json.loads(page.locator('#data').text_content())
    page.get_by_role('button', name='Show the map by random weights').click()
    page.mouse.move(*dot(page, 4, 1))
    assert page.locator('.looked p').inner_text().split() == f'{data["names"][4]} · {data["classes"][0]}'.split()
    page.mouse.click(*dot(page, 4, 1))
    nearest = page.locator('.nearest')
    assert nearest.count() == 3 and nearest.first.locator('button').count() == 12
    assert (
        'random weights' in nearest.first.inner_text()
        and nearest.first.locator('small').nth(1).inner_text()[:4] == '1 · '
    )
    for box in [
        thumb.evaluate('e => [...e.children].map(c => c.getBoundingClientRect())')
        for thumb in nearest.locator('.thumb').all()
    ]:
        assert box[0]['bottom'] <= box[1]['top'], 'text is below its picture'
    other = again(page_of, open_page, page)
    assert other.locator('.nearest').count() == 3 and other.locator('.note').count() == 0
    other.get_by_role('button', name='side by side').click()
    assert other.locator('canvas[role=application]:visible').count() == 3
    stale = open_page(page_of('map'), '#?of=another&image=gone.png&at2=0.1,0.1,40')
    notes = stale.locator('.note').all_inner_texts()
    assert len(notes) == 2 and 'another map' in notes[0] and notes[1] == 'gone.png is not on this map.'
    page.get_by_label('Find images by their names').fill('PLAIN/')
    assert page.locator('.listed').inner_text().startswith('15 images with “PLAIN/” in the name')
    page.get_by_role('button', name='as CSV').first.click()
    page.locator('.listed [data-done]').wait_for()
    assert len(list(csv.reader(io.StringIO(page.copied[0])))) == 16
    page.get_by_label('Find images by their names').fill('nowhere')
    assert page.locator('.listed').inner_text() == 'No images with “nowhere” in the name'


def test_a_click_on_a_cell_shows_the_nearest_of_other_images_and_a_link_names_it(page_of, open_page):
    page = open_page(page_of('map'), viewport=dict(width=1200, height=1100))
    data = json.loads(page.locator('#data').text_content())
    cells = data['cells']
    images = [cells['of'][2], next(i for i in range(31) if i not in cells['of'])]
    for image in images[::-1]:
        page.locator('canvas[role=application]:visible').focus()
        page.mouse.click(*dot(page, image))
        page.mouse.move(0, 0)
        assert page.locator('.big.cut').count() == (image in cells['of'])
    picture = page.locator('.big.cut svg')
    side = picture.bounding_box()['width']
    picture.click(position=dict(x=0.3 * side, y=0.7 * side))  # the third of four
    places = np.frombuffer(base64.b64decode(cells['near']), '<u4').reshape(-1, 4, cells['count'])[2, 2]
    wanted = [data['names'][cells['of'][place // 4]] for place in places]
    nearest = page.locator('.nearest').first.locator('button')
    assert [button.get_attribute('title') for button in nearest.all()] == wanted
    other = again(page_of, open_page, page)
    assert other.locator('.nearest').first.locator('button').first.get_attribute('title') == wanted[0]
    picture.press('ArrowUp')
    assert page.url.endswith('cell=0')
    place = np.frombuffer(base64.b64decode(cells['near']), '<u4').reshape(-1, 4, cells['count'])[2, 0, 0]
    nearest.first.click()
    assert page.url.endswith(f'cell={place % 4}') and page.locator('.nearest').count() == 4


def test_a_loop_lists_its_files_and_goes_with_the_map_in_the_address(page_of, open_page):
    size = dict(width=1200, height=1100)
    page = open_page(page_of('map'), viewport=size)
    page.get_by_role('button', name='Draw a loop').click()
    x, y = dot(page, 4)
    page.mouse.move(x - 25, y - 25)
    page.mouse.down()
    for corner in ((x + 25, y - 25), (x + 25, y + 25), (x - 25, y + 25)):
        page.mouse.move(*corner, steps=21)
    page.mouse.up()
    labels = json.loads(page.locator('#data').text_content())['labels']
    inside = [i for i in range(31) if all(abs(one - two) < 25 for one, two in zip(dot(page, i), (x, y)))]
    page.get_by_role('button', name='Zoom in').click()
    page.wait_for_url(re.compile('at2='))
    assert 'loops2=' in page.url and len(page.url) < 1500
    other = again(page_of, open_page, page, viewport=size)
    shown = other.locator('.listed')
    assert shown.inner_text().startswith(f'{len(inside)} images in the list') and 1 <= len(inside) < 31
    other.get_by_role('checkbox').first.uncheck()
    seen = sum(labels[i] != 0 for i in inside)
    assert shown.inner_text().startswith(f'{seen} images') if seen else not shown.count(), 'a hidden kind is not listed'
    other.get_by_role('checkbox').first.check()
    other.get_by_role('button', name='clear').click()
    assert not shown.count() and 'loops2=' not in other.url


def test_two_fingers_zoom_the_map_and_one_scrolls_the_page_past_it(page_of, open_page):
    page = open_page(page_of('map'), viewport=dict(width=390, height=800), has_touch=True, is_mobile=True)
    canvas = page.locator('canvas[role=application]:visible')
    canvas.scroll_into_view_if_needed()
    box, send = canvas.bounding_box(), page.context.new_cdp_session(page).send
    middle = box['x'] + box['width'] / 2, box['y'] + box['height'] / 2
    assert canvas.evaluate('of => of.style.touchAction') == 'pan-y'
    for kind, reach in (('touchStart', 30), ('touchMove', 60), ('touchMove', 90), ('touchEnd', None)):
        places = [dict(x=middle[0] + side * reach, y=middle[1], id=side + 1) for side in (-1, 1) if reach]
        send('Input.dispatchTouchEvent', dict(type=kind, touchPoints=places))
    page.wait_for_url(re.compile('at2='))
    x, y, scale = map(float, page.url.partition('at2=')[2].partition('&')[0].replace('%2C', ',').split(','))
    assert scale == pytest.approx(3 * 0.92, rel=1e-3) and (x, y) == pytest.approx((0.5, 0.5), abs=5e-3)
    assert page.locator('.nearest').count() == 0 and canvas.evaluate('of => of.style.touchAction') == 'none'


def test_the_map_goes_by_keyboard_alone(page_of, open_page):
    page = open_page(page_of('map'))
    page.locator('canvas[role=application]:visible').focus()
    for key in ('ArrowRight', 'ArrowRight', 'Enter', ' ', 'ArrowLeft', ' ', '+'):
        page.keyboard.press(key)
    assert page.locator('.nearest').count() == 3 and '2 images in the list' in page.locator('.listed').inner_text()
    page.wait_for_url(re.compile('at2='))
    assert '2 images in the list' in again(page_of, open_page, page).locator('.listed').inner_text()
    page.keyboard.press('Escape')
    assert page.locator('.nearest').count() == 0 and 'image=' not in page.url
    page.get_by_role('checkbox', name='plain').uncheck()
    assert 'hide=plain' in page.url

"""Pages in a real browser: layout at two widths, print, accessibility rules, and no request."""

import shutil
from pathlib import Path

import pytest
import torch
import torchvision
from harness import toy
from planted import healthy, write_run
from study.canned import record, row, steps
from torchvision.transforms.v2.functional import to_pil_image

from mmairl.config import load_config
from mmairl.evaluation.features import Features
from mmairl.evaluation.sets import evaluation_sets
from mmairl.registry import DATASETS
from mmairl.report.demo_page import PIXELS, RANDOM, TRAINED, draw_demo
from mmairl.report.health_page import write_health_page
from mmairl.report.map_page import map_images
from mmairl.study.page import write_results

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
sync_api = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
axe = pytest.importorskip('axe_playwright_python', reason='axe-playwright-python is not installed')
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason='there is no browser (apt-get install chromium)'
)
AXE = Path(axe.__file__).with_name('axe.min.js')
LONG = 'run <b>"\' ' + 'w' * 150


def health(folder: Path) -> Path:
    run = write_run(folder / LONG, *(healthy(step, 0.9 / step) for step in (1, 2, 3)))
    return write_health_page(run, folder / 'health.html')


def image_map(folder: Path) -> Path:
    shapes = DATASETS.build(dict(type='Shapes', split='val', count=30, size=32))
    for index in range(30):
        path = folder / 'images' / f'kind {index % 2} <b>' / f'{index}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        to_pil_image(shapes.raw(index)).save(path)
    shutil.copy(path, path.with_name('w' * 200 + '.png'))
    torch.save(torchvision.models.resnet18().state_dict(), folder / 'a.pth')
    return map_images(folder / 'a.pth', folder / 'images', folder / 'map.html', size=32)


def demo(folder: Path) -> Path:
    counts = {
        'train_dataloader.dataset.count': 40,
        'evaluation.train.count': 40,
        'evaluation.test.count': 40,
    }
    cfg = load_config(str(toy.CONFIGS / 'demo/mocov2plus_shapes.py'), counts)
    cfg.work_dir = str(write_run(folder / 'run', healthy(1, 0.9), healthy(2, 0.9)))
    sets = [dataset for _, dataset in evaluation_sets(cfg).values()]
    banks = tuple(Features(torch.rand(40, 8), dataset.labels) for dataset in sets)
    names = (PIXELS, RANDOM, TRAINED)
    page = draw_demo(cfg, sets, dict.fromkeys(names, 50.0), dict.fromkeys(names, banks), 0)
    return page.write(folder / 'demo.html')


def study(folder: Path) -> Path:
    rows = [*steps(30, 31, 40), row(LONG, [20, 90], 'row 0', published={'k-NN': 30.0}, x=1.0)]
    return write_results(record(rows, title=LONG, x='epochs'), folder)


PAGES = [health, image_map, demo, study]


@pytest.fixture(scope='module')
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'])
        yield started
        started.close()


@pytest.mark.parametrize('write', PAGES)
def test_page_works_on_any_screen_and_on_paper(write, browser, tmp_path):
    path = write(tmp_path)
    problems = []
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.on('console', lambda message: problems.append(message.text))
    page.on('request', lambda request: problems.append(request.url))
    page.goto(path.as_uri())
    assert [url for url in problems if not url.startswith(('file:', 'data:'))] == []
    assert (
        page.eval_on_selector_all('img', 'all => all.filter(i => !i.naturalWidth || !i.alt).length')
        == 0
    )
    for width in (1280, 390):
        page.set_viewport_size(dict(width=width, height=900))
        overflow = page.evaluate('document.documentElement.scrollWidth - innerWidth')
        assert overflow <= 0, f'the page is {overflow} pixels wider than {width} pixels'
    page.evaluate(AXE.read_text())
    for scheme, rules in (('light', ''), ('dark', "{runOnly: ['color-contrast']}")):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(f'axe.run({rules})')['violations']
        assert [(rule['id'], rule['nodes'][0]['html'][:80]) for rule in found] == []
    page.set_viewport_size(dict(width=700, height=900))
    page.emulate_media(media='print')
    cut = 'parts => parts.filter(part => part.scrollWidth > part.clientWidth + 1).length'
    assert page.eval_on_selector_all('main, section, .scroll, td', cut) == 0
    context.close()


def test_policy_of_pages_blocks_requests_and_scripts(browser, tmp_path):
    path = health(tmp_path)
    hostile = '<script>document.title = 1</script><img src="https://example.com/x.png">'
    path.write_text(path.read_text().replace('<main>', f'<main>{hostile}'))
    blocked = []
    page = browser.new_page()
    page.on('requestfailed', lambda request: blocked.append(request.url))
    page.goto(path.as_uri())
    assert blocked == ['https://example.com/x.png'] and page.title() != '1'
    page.close()

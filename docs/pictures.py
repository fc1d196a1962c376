"""Write the screenshots of mmairl's pages to docs/images.

PYTHONPATH=tests:tests/report python docs/pictures.py

The studies are measured (results/records). The health page shows invented values.
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from planted import healthy, write_run
from playwright.sync_api import Browser, sync_playwright

from mmairl.io import read_json
from mmairl.report.health_page import write_health_page
from mmairl.study.page import write_results

ROOT = Path(__file__).parents[1]
# the picture of each study, the folder of its records, and the height of the picture or the score whose effects it shows
STUDIES = {
    'study': ('ladder_demo', 1035),
    'distill': ('distill', 645),
    'dinov2': ('dino_to_dinov2', 945),
    'crossover': ('crossover_demo', 'scenes_plain_ap50'),
    'tuned': ('frameworks_tuned_demo', 675),
}


def shot(browser: Browser, page: Path, width: int, part: int | str) -> Image.Image:
    """Return a screenshot of the top of a page with this height, or of the effects on this score."""
    view = browser.new_page(viewport=dict(width=width, height=part if isinstance(part, int) else 1))
    view.goto(page.absolute().as_uri())
    region = view
    if isinstance(part, str):
        region = view.locator('section').filter(has_text=f'Effects on {part},')
        region.locator('summary').click()
    picture = Image.open(io.BytesIO(region.screenshot())).convert('RGB')
    view.close()
    return picture


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    pages = {}
    for name, (records, part) in STUDIES.items():
        record = read_json(ROOT / 'results/records' / records / 'study.json')
        pages[name] = write_results(record, folder / name), 1180, part
    steps_of_run = [healthy(step, 0.9 * 0.8**step) for step in range(1, 12)]
    run = write_run(folder / 'run_high_lr', *steps_of_run)
    pages['health'] = write_health_page(run, folder / 'health.html'), 1000, 760
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox']
        )
        pictures = {name: shot(browser, *page) for name, page in pages.items()}
    for name, picture in pictures.items():
        path = ROOT / f'docs/images/{name}.png'
        picture.quantize(256).save(path, optimize=True)


if __name__ == '__main__':
    main()

"""Write the screenshots of mmairl's pages to docs/images. The pages show invented numbers.

PYTHONPATH=tests:tests/report python docs/pictures.py
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from study.canned import Record, record, row
from test_health_page import healthy, write_scalars

from mmairl.report.health_page import write_health_page
from mmairl.study.page import write_results

MARGIN = 20  # pixels around the picture of a printed page
IMAGES = Path(__file__).parent / 'images'
FACTORS = {
    'MoCo v2': '',
    '+ SyncBN': 'ShuffleBN → SyncBN',
    '+ predictor': 'two-layer predictor on the student',
    '+ ascending momentum': 'teacher momentum 0.99 → rises to 1',
    '+ symmetric loss': 'one view is the query → both are',
    '+ complex augmentation': 'augmentation of MoCo v2 → BYOL',
    'BYOL (SGD)': 'contrastive → BYOL’s loss, no negatives',
}
EFFECTS = [(0, 0), (0.6, 1.5), (1.6, 0.9), (0.0, 0.2), (8.2, 0.9), (0.4, 2.5), (-1.6, 0.9)]
NOISE = (-0.7, 0.3, -0.2, 0.9, -0.3)
PAPER = {
    '+ ascending momentum': 70.0,
    '+ symmetric loss': 72.0,
    '+ complex augmentation': 72.4,
    'BYOL (SGD)': 72.1,
}


def ladder() -> Record:
    """Return the record of a study that leads from MoCo v2 to BYOL, with one equivalent and one clear step."""
    rows: list[Record] = []
    scores = [28.4 + noise for noise in NOISE]
    for (name, factor), (effect, spread) in zip(FACTORS.items(), EFFECTS):
        scores = [score + effect + spread * noise for score, noise in zip(scores, NOISE)]
        base = rows[-1]['name'] if rows else None
        published = {'linear': PAPER[name]} if name in PAPER else {}
        flops = 2e9 if name == '+ symmetric loss' else 1e9
        rows.append(row(name, scores, base, factor=factor, published=published, flops=flops))
    study = record(
        rows,
        seeds=len(NOISE),
        title='From MoCo v2 to BYOL, one factor at a time',
        question='Which training detail makes the difference?',
        paper='Huang et al. 2022, Fig. 2, Tab. 1',
        scale=dict(
            name='half',
            text='ResNet-18 of base width 16 on synthetic shapes, 6 epochs; invented numbers',
        ),
        command=['mmairl', 'study', 'configs/studies/ladder.yaml', '--scale', 'half'],
    )
    return study


def shot(
    browser: Browser, page: Path, width: int, height: int, dark: bool = False, paper: bool = False
) -> Image.Image:
    """Return a screenshot of a page, optionally in dark mode or as printed on paper."""
    view = browser.new_page(
        viewport=dict(width=width, height=height), color_scheme='dark' if dark else 'light'
    )
    if paper:
        view.emulate_media(media='print')
    view.goto(page.absolute().as_uri())
    picture = Image.open(io.BytesIO(view.screenshot())).convert('RGB')
    view.close()
    return picture


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    study = write_results(ladder(), folder)
    steps_of_run = [healthy(step, 0.9 * 0.8**step) for step in range(1, 12)]
    health = write_health_page(
        write_scalars(folder / 'run_high_lr', *steps_of_run), folder / 'health.html'
    )
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox']
        )
        phone = shot(browser, study, 390, 844, dark=True)
        printed = shot(browser, study, 587, 824, paper=True)
        both = Image.new('RGB', (phone.width + printed.width + 2 * MARGIN, phone.height), 'white')
        both.paste(phone, (0, 0))
        both.paste(printed, (phone.width + MARGIN, MARGIN))
        pictures = dict(
            methods=shot(browser, study, 1180, 1130),
            study_phone_print=both,
            health=shot(browser, health, 1000, 760),
            health_dark=shot(browser, health, 1000, 600, dark=True),
        )
    for name, picture in pictures.items():
        picture.quantize(256).save(IMAGES / f'{name}.png', optimize=True)


if __name__ == '__main__':
    main()

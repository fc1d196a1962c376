"""Write the page that shows training images and their views. Users check the views on it before they start a long run."""

from pathlib import Path

from markupsafe import Markup
from mmengine import Config

from mmairl.evaluation.sets import innermost
from mmairl.report.page import Page, macro
from mmairl.report.sections import pictured_views

SHOWN = 12
LONGEST = 300  # maximum side length in pixels of an original image on the page


def write_views_page(cfg: Config, out: str | Path, seed: int = 0) -> Path:
    """Write a page with some training images and their views, exactly as in training.

    Args:
        cfg: The config of the training.
        out: The file to write.
        seed: The seed for the choice of images and for their views.

    Returns:
        The path of the page.
    """
    rows = pictured_views(cfg, SHOWN, seed, LONGEST)
    page = Page(
        'Views of the training images',
        f'{len(rows)} random images of {Path(cfg.filename).name}, chosen by seed {seed}.',
    )
    page.add(
        'Images and their views',
        'Left: an image. Right: its views, exactly as in training, with the normalization undone. Check that you can still '
        'recognize the image in its views, and that the differences between views do not matter for your task.',
        macro('pictures.html', 'views', rows),
    )
    views = innermost(cfg.train_dataloader.dataset).get('views')
    views = views or cfg.model.data_preprocessor.get('views')
    text = Config(dict(views=views)).pretty_text
    page.add('Transforms', '', Markup('<pre>{}</pre>').format(text))
    return page.write(out)

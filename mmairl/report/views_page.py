"""Write the page that shows training images and their views. Users check the views on it before they start a long run."""

from pathlib import Path

from mmengine import Config

from mmairl.data.decode import to_unit
from mmairl.registry import DATASETS, MODELS
from mmairl.report.page import write_page
from mmairl.report.sections import augmented, picture, sample_indices, visible

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
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor_cfg = cfg.model.data_preprocessor
    preprocessor = MODELS.build(preprocessor_cfg)
    chosen = sample_indices(dataset, SHOWN, seed)
    views = augmented(dataset, preprocessor, chosen, seed)
    samples = []
    for place, index in enumerate(chosen):
        original = visible(to_unit(dataset.raw(index)), dataset, preprocessor)
        pictures = [picture(original, 'image', LONGEST)]
        for number, batch in enumerate(views, 1):
            pictures.append(picture(batch[place], f'view {number}', LONGEST))
        samples.append((Path(dataset.name(index)).name, pictures))
    views_of_config = cfg.train_dataloader.dataset.get('views') or preprocessor_cfg.get('views')
    return write_page(
        out,
        'views.html',
        title='Views of the training images',
        lead=f'{len(chosen)} of the {len(dataset):,} images of {Path(cfg.filename).name}, chosen by seed {seed}.',
        samples=samples,
        settings=Config(dict(views=views_of_config)).pretty_text,
    )

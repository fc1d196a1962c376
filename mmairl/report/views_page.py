"""Write the page that shows training images and their views. Users check the views on it before they start a long run."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import torchvision.transforms.v2.functional as F
from mmengine import Config

from mmairl.data.datasets import Pipeline, ViewDataset, innermost_dataset
from mmairl.data.decode import to_unit
from mmairl.data.preprocess import ViewPreprocessor, require_channels
from mmairl.data.transforms import Augmentation, Params, RandomResizedCrop
from mmairl.data.view_sets import reasons
from mmairl.errors import UserError
from mmairl.registry import DATASETS, MODELS
from mmairl.report.page import write_page
from mmairl.report.sections import REACH, augmented, picture, sample_indices, visible

SHOWN = 12
LONGEST = 400  # maximum side length in pixels of an original image on the page
# A text about a transform with its sampled parameters, and whether the transform was applied.
Step = tuple[str, bool]
Box = dict[str, float]  # the left and top edge, width and height of a crop, in percent of the image
# A text about the sampled parameters of an image ('' if the transform was not applied), and the crop of the image.
Drawn = tuple[str, Box | None]
# For each view, a list of its transforms. Each transform is paired with a list that has one `Drawn` for each image.
Heard = list[list[tuple[Callable, list[Drawn]]]]


def write_views_page(cfg: Config, out: str | Path, seed: int = 0) -> Path:
    """Write a page with some training images, their views exactly as in training, and the parameters of their transforms.

    Args:
        cfg: The config of the training.
        out: The file to write.
        seed: The seed for the choice of images and for their views.

    Returns:
        The path of the page.

    Raises:
        UserError: If the data set is not one of mmairl, or the preprocessor is not a ViewPreprocessor.
    """
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    if not isinstance(dataset, ViewDataset) or not isinstance(preprocessor, ViewPreprocessor):
        raise UserError(
            f'report views: requires a data set of mmairl and a ViewPreprocessor, but the config has {type(dataset).__name__} '
            f'and {type(preprocessor).__name__}; use another config',
            code='no-views-to-show',
        )
    source = innermost_dataset(dataset)
    in_workers = source.views
    on_device = preprocessor.views or []
    require_channels(dataset, preprocessor.mean, views=[*in_workers, *on_device])
    chosen = sample_indices(dataset, SHOWN, seed)
    heard = [listen(in_workers), listen(on_device)]
    batches = augmented(dataset, preprocessor, chosen, seed)
    samples = []
    for place, index in enumerate(chosen):
        views = []
        for number, batch in enumerate(batches):
            steps, box = steps_of(heard, number, place)
            image = picture(batch[place], f'view {number + 1}')
            views.append(dict(picture=image, steps=steps, box=box))
        original = visible(to_unit(dataset.raw(index)), dataset, preprocessor)
        if max(original.shape) > LONGEST:
            original = F.resize(original, None, max_size=LONGEST)
        name = Path(dataset.name(index)).name
        samples.append(dict(name=name, image=picture(original, 'image'), views=views))
    named = cfg.train_dataloader.dataset.get('views')
    return write_page(
        out,
        'views.html',
        title='Views of the training images',
        lead=f'{len(chosen)} of the {len(dataset):,} images of {Path(cfg.filename).name}, chosen by seed {seed}.',
        shown=samples,
        stored=source.as_stored,
        channels=source.channels,
        reach=REACH,
        named=named,
        reasons=reasons(named) if isinstance(named, str) else (),
    )


def listen(pipelines: Sequence[Pipeline]) -> Heard:
    """Make the transforms record the parameters that they sample from now on. Return the records, which are still empty."""
    heard: Heard = [[(step, []) for step in pipeline] for pipeline in pipelines]
    for step, draws in chain(*heard):
        if isinstance(step, Augmentation):
            step.draw = partial(_recorded_draw, step, step.draw, draws)
    return heard


def _recorded_draw(
    step: Augmentation,
    draw: Callable[..., Params],
    draws: list[Drawn],
    count: int,
    height: int,
    width: int,
) -> Params:
    params = draw(count, height, width)
    lengths = dict(left=width, top=height, width=width, height=height)
    for image in range(count):
        own = {key: value[image : image + 1] for key, value in params.items()}
        box = None
        if isinstance(step, RandomResizedCrop):
            box = {}
            for side, length in lengths.items():
                box[side] = 100 * own[side].item() / length
        draws.append((step.describe(own), box))
    return params


def steps_of(heard: Sequence[Heard], view: int, place: int) -> tuple[list[Step], Box | None]:
    """Return texts about the transforms of a view of an image, and the crop if the first transform is a crop.

    Args:
        heard: The records of the transforms in data workers, and of the transforms on the device.
        view: The index of the view.
        place: The index of the image in the batch.
    """
    steps = []
    boxes = []
    for views in filter(None, heard):
        for step, draws in views[view if len(views) > 1 else 0]:
            name = type(step).__name__
            words, box = draws[place] if draws else (name, None)
            steps.append((words or name, bool(words)))
            boxes.append(box)
    return steps, boxes[0] if boxes else None

"""A page of images and the views that a config makes of them, to look at before a long run."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torchvision.transforms.v2.functional as F
from mmengine import Config
from torch import Tensor

from mmairl.data.datasets import Pipeline, ViewDataset, innermost_dataset
from mmairl.data.decode import to_unit
from mmairl.data.preprocess import ViewPreprocessor, require_channels
from mmairl.data.transforms import Augmentation, Params, RandomResizedCrop
from mmairl.data.view_sets import reasons
from mmairl.errors import UserError
from mmairl.registry import DATASETS, MODELS
from mmairl.report.page import write_page
from mmairl.report.sections import REACH, augmented, black_and_white, in_bytes, picture, some

SHOWN = 12
LONGEST = 400  # pixels of an original on the page
Draw = tuple[int, int, Params]  # height and width of an image, and the sampled parameters
# The transforms of each view, each with what it sampled for every image.
Heard = list[list[tuple[Callable, list[Draw]]]]
Step = tuple[str, bool]  # a transform in words, and whether it was applied
Box = dict[str, float]  # a crop in percent of the image


def write_views_page(cfg: Config, out: str | Path, seed: int = 0) -> Path:
    """Write a page of training images, their views as in training, and the sampled parameters.

    Args:
        cfg: The config of the training.
        out: The file to write.
        seed: The seed that selects the images and samples the views.

    Returns:
        The path of the page.

    Raises:
        UserError: If the config does not use a data set of mmairl and ViewPreprocessor.
    """
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    if not isinstance(dataset, ViewDataset) or not isinstance(preprocessor, ViewPreprocessor):
        raise UserError(
            f'report views: requires a data set of mmairl and ViewPreprocessor, not {type(dataset).__name__} with '
            f'{type(preprocessor).__name__}; use another config',
            code='no-views-to-show',
        )
    in_workers = innermost_dataset(dataset).views
    on_device = preprocessor.views or []
    require_channels(dataset, preprocessor.mean, views=[*in_workers, *on_device])
    chosen = some(dataset, SHOWN, seed)
    heard = [listen(in_workers), listen(on_device)]
    batches = augmented(dataset, preprocessor, chosen, seed)
    shown = []
    for place, index in enumerate(chosen):
        views = []
        for number, batch in enumerate(batches):
            steps, box = steps_of(heard, number, place)
            image = picture(batch[place], f'view {number + 1}')
            views.append(dict(picture=image, steps=steps, box=box))
        name = Path(dataset.name(index)).name
        original = picture(_original(dataset, preprocessor, index), 'image')
        shown.append(dict(name=name, image=original, views=views))
    named = cfg.train_dataloader.dataset.get('views')
    is_named = isinstance(named, str)
    lead = f'{len(chosen)} of the {len(dataset):,} images of {Path(cfg.filename).name}, chosen by seed {seed}.'
    return write_page(
        out,
        'views.html',
        title='Views of the training images',
        lead=lead,
        shown=shown,
        channels=_channels(innermost_dataset(dataset)),
        named=named if is_named else '',
        reasons=reasons(named) if is_named else (),
    )


def _channels(dataset: ViewDataset) -> str:
    """Return how the channels of images that are not photographs are shown."""
    if not dataset.as_stored:
        return ''
    if dataset.channels < 3:
        shown = f'Channel 1 of {dataset.channels} is shown as gray'
    else:
        shown = f'Channels 1 to 3 of {dataset.channels} are shown as red, green and blue'
    return f'{shown}, from {REACH} standard deviations below the mean to {REACH} above.'


def _original(dataset: ViewDataset, preprocessor: ViewPreprocessor, index: int) -> Tensor:
    low, high = black_and_white(dataset, preprocessor)
    image = in_bytes(to_unit(dataset.raw(index)), low, high)
    return F.resize(image, None, max_size=LONGEST) if max(image.shape) > LONGEST else image


def listen(pipelines: Sequence[Pipeline]) -> Heard:
    """Make the transforms record what they sample from now on, and return the records."""
    heard: Heard = [[(step, []) for step in pipeline] for pipeline in pipelines]
    for step, draws in chain(*heard):
        if isinstance(step, Augmentation):
            step.draw = partial(_recorded_draw, step.draw, draws)
    return heard


def _recorded_draw(
    draw: Callable[..., Params], draws: list[Draw], count: int, height: int, width: int
) -> Params:
    params = draw(count, height, width)
    for image in range(count):
        own = {key: value[image : image + 1] for key, value in params.items()}
        draws.append((height, width, own))
    return params


def steps_of(heard: Sequence[Heard], view: int, place: int) -> tuple[list[Step], Box | None]:
    """Return the transforms of a view in words, and its crop.

    Args:
        heard: The records of the data workers and of the device.
        view: The number of the view.
        place: The image's place in the batch.
    """
    transforms: list[Any] = []
    for views in heard:
        if views:
            transforms += views[view if len(views) > 1 else 0]
    steps = []
    for step, draws in transforms:
        name = type(step).__name__
        words = step.tell(draws[place][2]) if draws else name
        steps.append((words or name, bool(words)))
    box = None
    if transforms:
        step, draws = transforms[0]
        if draws and isinstance(step, RandomResizedCrop):
            box = _box(*draws[place])
    return steps, box


def _box(height: int, width: int, params: Params) -> Box:
    lengths = dict(left=width, top=height, width=width, height=height)
    return {side: 100 * params[side].item() / length for side, length in lengths.items()}

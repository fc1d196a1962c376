"""A page of images with the views that a config makes of them: what to look at before a run of three days."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torchvision.transforms.v2.functional as F
from mmengine import Config

from mmairl.data.transforms import Augmentation, Params, RandomResizedCrop
from mmairl.data.views import Pipeline, ViewDataset, ViewPreprocessor, inner_most, require_channels, to_unit
from mmairl.errors import UserError
from mmairl.registry import DATASETS, MODELS
from mmairl.report.page import Page, fill
from mmairl.report.sections import REACH, augmented, black_and_white, in_bytes, picture, some

SHOWN = 12
LONGEST = 400  # pixels of an original on the page


class Drawn(NamedTuple):
    """The values that a transform drew for an image of this size."""

    height: int
    width: int
    params: Params


Heard = list[list[tuple[Callable, list[Drawn]]]]  # for each view, its transforms, each with a Drawn for every image


def write_views_page(cfg: Config, out: str | Path, seed: int = 0) -> Path:
    """Draw some images of the training set, their views as training makes them, and what was drawn for each.

    >>> write_views_page(load_config('mmairl::demo/mocov2plus_shapes.py'), 'views.html')  # doctest: +SKIP
    """
    dataset, preprocessor = DATASETS.build(cfg.train_dataloader.dataset), MODELS.build(cfg.model.data_preprocessor)
    if not isinstance(dataset, ViewDataset) or not isinstance(preprocessor, ViewPreprocessor):
        raise UserError(
            f'views are drawn of the data sets of mmairl with ViewPreprocessor, not of {type(dataset).__name__} with '
            f'{type(preprocessor).__name__}; give a config that has them'
        )
    views = [*inner_most(dataset).views, *(preprocessor.views or [])]
    require_channels(dataset, preprocessor.mean, views=views)
    chosen = some(dataset, SHOWN, seed)
    heard = [listen(inner_most(dataset).views), listen(preprocessor.views or [])]  # in data workers, then on the device
    views = augmented(dataset, preprocessor, chosen, seed)
    shown, (low, high) = [], black_and_white(dataset, preprocessor)
    for place, index in enumerate(chosen):
        whole = in_bytes(to_unit(dataset.raw(index)), low, high)
        if max(whole.shape) > LONGEST:
            whole = F.resize(whole, None, max_size=LONGEST)
        made = []
        for number, batch in enumerate(views):
            steps, box = of_view(heard, number, place)
            made.append(dict(picture=picture(batch[place], f'view {number + 1}'), steps=steps, box=box))
        shown.append(dict(name=Path(dataset.name(index)).name, image=picture(whole, 'image'), views=made))
    lead = f'{len(chosen)} of the {len(dataset):,} images of {Path(cfg.filename).name}, chosen by seed {seed}.'
    page = Page('What the network will see', lead)
    page.add(
        'Images and their views',
        'Left the image with the boxes that were cut out of it, then its views with what was drawn for each, in the order '
        'in which it is done; what the draw left out is grey. Can you still tell what it is? And is what differs between '
        'the views really of no importance to you?',
        fill('views.html', shown=shown),
        f'Exactly as training makes them, with the normalisation undone. {channels_in_words(inner_most(dataset))}',
    )
    return page.write(out)


def channels_in_words(dataset: ViewDataset) -> str:
    """Name the channels that the page shows, and how bright, where the images are no photographs."""
    if not dataset.as_stored:
        return ''
    which = f'Channels 1 to 3 of {dataset.channels} are shown as red, green and blue'
    if dataset.channels < 3:
        which = f'Channel 1 of {dataset.channels} is shown as grey'
    return f'{which}, from {REACH} standard deviations below its mean to {REACH} above.'


def listen(pipelines: Sequence[Pipeline]) -> Heard:
    """Have the transforms keep what they draw from now on."""
    heard: Heard = [[(step, []) for step in pipeline] for pipeline in pipelines]
    for step, drawn in chain(*heard):
        if isinstance(step, Augmentation):
            step.draw = _keeping(step.draw, drawn)
    return heard


def _keeping(draw: Callable[..., Params], drawn: list[Drawn]) -> Callable[..., Params]:
    def kept(count: int, height: int, width: int) -> Params:
        params = draw(count, height, width)
        for i in range(count):
            drawn.append(Drawn(height, width, {key: value[i : i + 1] for key, value in params.items()}))
        return params

    return kept


def of_view(heard: Sequence[Heard], view: int, place: int) -> tuple[list[tuple[str, bool]], dict[str, float] | None]:
    """A view's steps in words, with whether each was done, and its crop as percentages of the image."""
    steps = [step for part in heard if part for step in part[view if len(part) > 1 else 0]]
    told, box = [], None
    for number, (step, drawn) in enumerate(steps):
        words = step.tell(drawn[place].params) if drawn else type(step).__name__
        told.append((words or type(step).__name__, bool(words)))
        if number == 0 and drawn and isinstance(step, RandomResizedCrop):
            height, width, params = drawn[place]
            whole = dict(left=width, top=height, width=width, height=height)
            box = {side: 100 * params[side].item() / length for side, length in whole.items()}
    return told, box

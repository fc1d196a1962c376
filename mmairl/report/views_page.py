"""A page of images with the views that a config makes of them: what to look at before a run of three days."""

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
from mmairl.report.sections import REACH, augmented, black_and_white, in_bytes, picture, some

SHOWN = 12
LONGEST = 400  # pixels of an original on the page


# For each view its transforms, each with what it drew for every image: height, width and parameters.
Heard = list[list[tuple[Callable, list[tuple[int, int, Params]]]]]


def write_views_page(cfg: Config, out: str | Path, seed: int = 0) -> Path:
    """Draw some images of the training set, their views as training makes them, and what was drawn for each."""
    dataset, preprocessor = DATASETS.build(cfg.train_dataloader.dataset), MODELS.build(cfg.model.data_preprocessor)
    if not isinstance(dataset, ViewDataset) or not isinstance(preprocessor, ViewPreprocessor):
        raise UserError(
            f'views are drawn of the data sets of mmairl with ViewPreprocessor, not of {type(dataset).__name__} with '
            f'{type(preprocessor).__name__}; give a config that has them'
        )
    views = [*innermost_dataset(dataset).views, *(preprocessor.views or [])]
    require_channels(dataset, preprocessor.mean, views=views)
    chosen = some(dataset, SHOWN, seed)
    heard = [
        listen(innermost_dataset(dataset).views),
        listen(preprocessor.views or []),
    ]  # in data workers, then on the device
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
    name = cfg.train_dataloader.dataset.get('views')
    lead = f'{len(chosen)} of the {len(dataset):,} images of {Path(cfg.filename).name}, chosen by seed {seed}.'
    return write_page(
        out,
        'views.html',
        title='What the network will see',
        lead=lead,
        shown=shown,
        images=innermost_dataset(dataset),
        reach=REACH,
        named=name if isinstance(name, str) else '',
        reasons=reasons(name) if isinstance(name, str) else (),
    )


def listen(pipelines: Sequence[Pipeline]) -> Heard:
    """Have the transforms keep what they draw from now on."""
    heard: Heard = [[(step, []) for step in pipeline] for pipeline in pipelines]
    for step, drawn in chain(*heard):
        if isinstance(step, Augmentation):
            step.draw = partial(_draw, step.draw, drawn)
    return heard


def _draw(draw: Callable[..., Params], drawn: list[tuple], count: int, height: int, width: int) -> Params:
    params = draw(count, height, width)
    drawn += [(height, width, {key: value[i : i + 1] for key, value in params.items()}) for i in range(count)]
    return params


def of_view(heard: Sequence[Heard], view: int, place: int) -> tuple[list[tuple[str, bool]], dict[str, float] | None]:
    """A view's steps in words, with whether each was done, and its crop as percentages of the image."""
    steps = [step for part in heard if part for step in part[view if len(part) > 1 else 0]]
    told, box = [], None
    for number, (step, drawn) in enumerate(steps):
        words = step.tell(drawn[place][2]) if drawn else type(step).__name__
        told.append((words or type(step).__name__, bool(words)))
        if number == 0 and drawn and isinstance(step, RandomResizedCrop):
            height, width, params = drawn[place]
            whole = dict(left=width, top=height, width=width, height=height)
            box = {side: 100 * params[side].item() / length for side, length in whole.items()}
    return told, box

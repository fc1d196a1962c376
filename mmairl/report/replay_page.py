"""Write a page about one iteration of a training run, which has been replayed from a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.runner import Runner

from mmairl.data.datasets import ViewDataset, innermost_dataset
from mmairl.engine.replay_step import StepRecord
from mmairl.errors import UserError
from mmairl.models.processes import network_of
from mmairl.report.page import Page, macro
from mmairl.report.sections import in_bytes, picture
from mmairl.report.table import ABSENT, html_table
from mmairl.report.views_page import Heard, listen, steps_of

SHOWN = 24  # maximum number of images on the page


class ParameterRecorder:
    """Record the parameters that the transforms sample for the images of an iteration, without changing the iteration."""

    def __init__(self) -> None:
        self.on_device: Heard = []

    def __call__(self, runner: Runner) -> None:
        """Start to record the transforms that run on the device. Pass this object to `replay_step` as `prepare`."""
        preprocessor = network_of(runner).data_preprocessor
        self.on_device = listen(getattr(preprocessor, 'views', None) or [])

    def parameters(self, record: StepRecord) -> list[list[str]]:
        """Return, for each image, a text for each view with the parameters that the transforms sampled.

        The list has at most `SHOWN` images. It is empty if the data set has no views.
        """
        data = innermost_dataset(record.dataset)
        if not isinstance(data, ViewDataset):
            return []
        in_workers = listen(data.views)
        items = record.items[:SHOWN]
        # Each item has an index and a seed, so loading the items again samples the same parameters.
        record.dataset.__getitems__(items)
        heard = [in_workers, self.on_device]
        rows = []
        for place in range(len(items)):
            cells = []
            for view in range(len(record.views)):
                steps, _ = steps_of(heard, view, place)
                cells.append(', '.join(words for words, done in steps if done))
            rows.append(cells)
        return rows


def write_replay_page(
    out: Path,
    records: Sequence[StepRecord],
    change: str = '',
    per_image: bool = False,
    views: Sequence[Sequence[str]] | None = None,
) -> Path:
    """Write a page about a replayed iteration.

    Args:
        out: The file to write.
        records: The replayed iteration, optionally followed by the same iteration with changed options.
        change: The changed options, as text.
        per_image: Whether to show the loss, the gradient and the nearest keys in the queue for each image.
        views: The texts of `ParameterRecorder.parameters`, to show with the views. If None, views are not shown.
    """
    record = records[0]
    names = dict.fromkeys(name for one in records for name in one.values)
    rows = []
    for name in names:
        values = [one.values.get(name) for one in records]
        rows.append((name, [ABSENT if value is None else f'{value:.6g}' for value in values]))
    page = Page(
        f'Iteration {record.iteration}',
        f'Loss {record.values["loss"]:.4g} on {len(record.items)} images.',
    )
    columns = ['as trained', change][: len(records)]
    table = html_table(columns, rows)
    page.add(
        'Values',
        'The iteration was replayed exactly as in training, from the nearest checkpoint before it (or the initial weights).',
        table,
    )
    if per_image:
        _add_images(page, record)
    if views is not None:
        _add_views(page, record, views)
    return page.write(out)


def _name(record: StepRecord, place: int) -> str:
    index = record.items[place][0]
    name = getattr(record.dataset, 'name', None)
    return Path(name(index)).name if name else f'image {index}'


def _add_images(page: Page, record: StepRecord) -> None:
    """Add a table with the loss, the gradient and the nearest keys of each image, in descending order of gradients."""
    rows = []
    for place in record.gradients.argsort(descending=True)[:SHOWN].tolist():
        loss = ABSENT if record.losses is None else f'{record.losses[place]:.4g}'
        keys = record.nearest[place] if record.nearest else []
        near = ', '.join(f'{cosine:.3f} ({age} keys old)' for cosine, age in keys) or ABSENT
        rows.append((_name(record, place), [loss, f'{record.gradients[place]:.4g}', near]))
    text = (
        'The gradient norm of an image is the norm of the gradient of the loss with respect to the queries of the image, '
        'multiplied by the batch size.'
    )
    if record.nearest:
        text += ' The nearest keys are listed with their age and their cosine similarity to the first query of the image.'
    if record.losses is None:
        text += ' The loss compares the images of a batch with each other, so a single image has no loss of its own.'
    columns = ['loss', 'gradient norm', 'nearest keys in the queue']
    page.add(
        'Images',
        text,
        html_table(columns, rows, words=True),
        'Images are in descending order of their gradient norms.',
    )


def _add_views(page: Page, record: StepRecord, parameters: Sequence[Sequence[str]]) -> None:
    if len({len(view) for view in record.views}) != 1:
        raise UserError(
            'replay --views: images with different numbers of views cannot be shown; omit --views',
            code='uneven-views',
        )
    mean = getattr(record.preprocessor, 'mean', 0.0)
    std = getattr(record.preprocessor, 'std', 1.0)
    views = [in_bytes(view[:SHOWN] * std + mean) for view in record.views]
    columns = [f'view {number}' for number in range(1, len(views) + 1)]
    shown = []
    rows = []
    for place, images in enumerate(zip(*views)):
        name = _name(record, place)
        alts = [f'{name}, {column}' for column in columns]
        shown.append(list(map(picture, images, alts)))
        if parameters:
            rows.append((name, parameters[place]))
    page.add(
        'Views',
        'These are the images as the model received them, with the normalization undone.',
        macro('pictures.html', 'grid', shown),
    )
    if rows:
        page.add('Sampled parameters', figure=html_table(columns, rows, words=True))

"""Images that Hugging Face's `datasets` has saved in a folder, where that package is installed."""

from pathlib import Path

import torch
from torch import Tensor

from mmairl.data.images import MAX_PIXELS, UnreadableImage, decode, decode_bytes
from mmairl.data.views import ViewDataset, Views
from mmairl.errors import UserError
from mmairl.registry import DATASETS


@DATASETS.register_module()
class HuggingFaceDataset(ViewDataset):
    """What `dataset.save_to_disk(root)` wrote: its first column of images and, if it has one, of class labels.

    `split` names one of several splits that were saved together.

    >>> HuggingFaceDataset('data/beans', split='train', views=[[dict(type='CenterCrop', size=224)]])  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        views: Views | None = None,
        max_unreadable: float = 0.01,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(views)
        self.root, self.max_unreadable, self.max_pixels = Path(root), max_unreadable, max_pixels
        try:
            from datasets import ClassLabel, DatasetDict, Image, load_from_disk
        except ImportError as error:
            raise UserError(
                'HuggingFaceDataset reads folders by the package `datasets`; pip install datasets'
            ) from error
        try:
            saved = load_from_disk(str(root))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f'{self.root.resolve()} is no folder that dataset.save_to_disk(...) wrote; give one that is'
            ) from error
        if isinstance(saved, DatasetDict) != (split is not None) or (split is not None and split not in saved):
            splits = f'the splits {", ".join(saved)}' if isinstance(saved, DatasetDict) else 'no splits'
            raise UserError(f'{root} has {splits}, and split={split!r}; set split to one of them, or leave it out')
        rows = saved if split is None else saved[split]
        images = [name for name, kind in rows.features.items() if isinstance(kind, Image)]
        if not images:
            raise UserError(f'{root} has no column of images among {", ".join(rows.features)}; save one that has')
        labels = next((name for name, kind in rows.features.items() if isinstance(kind, ClassLabel)), None)
        self.labels = torch.tensor(rows[labels][:] if labels else [-1] * len(rows), dtype=torch.int64)
        self.classes = list(rows.features[labels].names) if labels else []
        # As files, so that ours is the decoder: the right way up, in RGB, and broken ones are told.
        self.rows, self.column = rows.select_columns(images[0]).cast_column(images[0], Image(decode=False)), images[0]

    def name(self, index: int) -> str:
        return f'image {index} of {self.root}'

    def raw(self, index: int) -> Tensor:
        stored = self.rows[index][self.column]
        try:
            if stored['bytes'] is None:
                return decode(Path(stored['path']), Path(stored['path']).parent, self.max_pixels)
            return decode_bytes(stored['bytes'], self.max_pixels)
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, self.name(index)) from fault

"""Images in Parquet, Arrow and WebDataset files or on the Hugging Face hub, read by `datasets`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import installed
from mmairl.data.reading import read_file
from mmairl.errors import explained
from mmairl.registry import DATASETS


@DATASETS.register_module()
class HubImages(ViewDataset):
    """Images that the library `datasets` loads. Its files are memory-mapped, and order is free.

    Args:
        path: A data set of the Hugging Face hub, a folder that `Dataset.save_to_disk` wrote, or a
            format: 'parquet', 'arrow' or 'webdataset', with `data_files`.
        split: Name of the split.
        image: Name of the column with the images.
        label: Name of the column with the labels. If there is no such column, images are unlabeled.
        options: `views`, `channels` and `max_unreadable`, as in `ViewDataset`.
        data: Other arguments of `datasets.load_dataset`, such as `data_files`.

    Raises:
        UserError: If the data set cannot be loaded, or if it has no such column of images.

    Example:
        >>> HubImages('parquet', data=dict(data_files='hub/train-*.parquet'))  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str,
        split: str = 'train',
        image: str = 'image',
        label: str = 'label',
        data: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        with installed('datasets', 'Parquet files and data sets of the Hugging Face hub'):
            import datasets
        remedy = 'check the name, the split and the connection'
        with explained(f'{path}: cannot be loaded by datasets', remedy, code='bad-hub-dataset'):
            if (Path(path) / 'state.json').exists():
                table = datasets.load_from_disk(path)
            else:
                table = datasets.load_dataset(path, split=split, **(data or {}))
        self.path = f'{path}/{split}'
        self.image = image
        self.labels = torch.full((len(table),), -1)
        if label in table.column_names:
            if isinstance(table[0][label], str):
                table = table.class_encode_column(label)
            self.labels = torch.tensor([-1 if value is None else value for value in table[label]])
            numbers = range(int(self.labels.max()) + 1)
            self.classes = getattr(table.features[label], 'names', list(map(str, numbers)))
        with explained(
            f'HubImages.image={image}', 'set a column of images', code='no-image-column'
        ):
            column = table.select_columns([image])
            self.table = column.cast_column(image, datasets.Image(decode=False))

    def name(self, index: int) -> str:
        return f'{self.path}/{index:09}'

    def member(self, index: int) -> str:
        return f'{index:09}'

    def encoded(self, index: int) -> bytes:
        image = self.table[index][self.image] or {}
        if image.get('path') and image['bytes'] is None:
            path = Path(image['path'])
            return read_file(path, path.parent)
        return image.get('bytes') or b''

    content = encoded

"""Items of a data set, and batches before and after the preprocessor."""

import torch
from harness.errors import raises_code
from torch import Tensor

from mmairl.data.datasets import ViewDataset
from mmairl.data.preprocess import ViewPreprocessor

COUNT = 24
RECIPE = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
]


class Ramp(ViewDataset):
    """A data set of three images, each of which can have several classes."""

    classes = ['a', 'b']

    def __init__(self, views: list | None = None) -> None:
        super().__init__(views)
        self.labels = torch.tensor([[1, 0], [0, 1], [-1, 1]])

    def raw(self, index: int) -> Tensor:
        return torch.arange(12, dtype=torch.uint8).view(3, 2, 2) + index


def test_item_has_views_label_and_index():
    data = Ramp([[dict(type='RandomFlip', p=1.0)], [dict(type='Solarize', p=1.0, threshold=0)]])
    item = data[2]
    assert torch.equal(item['inputs'][0], data.raw(2).flip(-1)) and torch.equal(item['inputs'][1], 255 - data.raw(2))
    assert item['data_samples']['label'].tolist() == [-1, 1] and item['data_samples']['index'] == 2
    assert torch.equal(Ramp()[1]['inputs'][0], data.raw(1)) and data.metainfo == dict(classes=['a', 'b'])
    assert data.name(2) == 'image 2'


def test_each_view_continues_with_its_own_pipeline():
    flip, invert = [dict(type='RandomFlip', p=1.0)], [dict(type='Solarize', p=1.0, threshold=0)]
    make = ViewPreprocessor(mean=(0.0,) * 3, std=(1.0,) * 3, views=[flip, invert])
    first, second = torch.randint(0, 256, (2, 4, 3, 8, 8), dtype=torch.uint8)
    processed = make(dict(inputs=[first, second]), training=True)['inputs']
    torch.testing.assert_close(processed[0], first.flip(-1) / 255)
    torch.testing.assert_close(processed[1], 1 - second / 255)
    single = make(dict(inputs=[first]), training=True)['inputs']
    torch.testing.assert_close(single[0], first.flip(-1) / 255)
    torch.testing.assert_close(single[1], 1 - first / 255)
    with raises_code('views-differ'):
        make(dict(inputs=[first] * 3), training=True)


def test_tf32_and_autocast_do_not_affect_views():
    seen = []

    class Spy:
        def batch(self, images: Tensor) -> Tensor:
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return images

    make = ViewPreprocessor(mean=(0.0,) * 3, std=(1.0,) * 3, views=[RECIPE])
    make.views[0].append(Spy())
    data = dict(inputs=[torch.randint(0, 256, (8, 3, 40, 40), dtype=torch.uint8)])
    torch.manual_seed(3)
    expected = make(data, training=True)['inputs'][0]
    torch.manual_seed(3)
    torch.set_float32_matmul_precision('high')
    try:
        with torch.autocast('cpu', torch.bfloat16):
            processed = make(data, training=True)['inputs'][0]
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ('high', True)
    finally:
        torch.set_float32_matmul_precision('highest')
    assert seen == [('highest', False)] * 2
    assert processed.dtype == torch.float32 and torch.equal(processed, expected)


def test_preprocessor_repeats_normalized_views_by_seed():
    make = ViewPreprocessor(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), views=[RECIPE, RECIPE])
    data = dict(inputs=[torch.randint(0, 256, (COUNT, 3, 40, 40), dtype=torch.uint8)])
    torch.manual_seed(1)
    first, second = make(data, training=True)['inputs']
    torch.manual_seed(1)
    again = make(data, training=True)['inputs']
    assert first.shape == (COUNT, 3, 24, 24) and not torch.equal(first, second)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    still = make(data, training=False)['inputs']
    expected = (data['inputs'][0] / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / 0.2
    torch.testing.assert_close(still[0], expected)
    assert not make.state_dict(), 'the statistics are in checkpoints'
    batch = dict(data, data_samples=dict(label=torch.ones(COUNT), index=torch.arange(COUNT)))
    assert list(make(batch)['data_samples']) == ['label'] and list(batch['data_samples']) == ['label', 'index']


def test_single_view_is_a_tensor():
    make = ViewPreprocessor(mean=(0.5,) * 3, std=(0.2,) * 3, single_view=True)
    batch = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(make(dict(inputs=[batch]))['inputs'], (batch / 255 - 0.5) / 0.2)
    with raises_code('several-views'):
        make(dict(inputs=[batch] * 2))

"""Which classes an image of VOC shows, from annotations as the challenge wrote them."""

from pathlib import Path

import pytest
from mmairl.data.published import VOC_CLASSES as CLASSES, VOC2007
from PIL import Image

from mmairl.errors import UserError

# name -> (split, [(class, difficult)])
IMAGES = {
    '000005': ('train', [('chair', 0), ('chair', 1), ('person', 1)]),
    '000007': ('train', [('car', 1), ('car', 0)]),
    '000009': ('val', [('horse', 0), ('person', 0)]),
    '000001': ('test', [('dog', 1), ('dog', 1)]),
}


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    folder = tmp_path / 'VOCdevkit' / 'VOC2007'
    for part in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (folder / part).mkdir(parents=True)
    for name, (_, things) in IMAGES.items():
        grey = int(name)
        Image.new('RGB', (9, 6), (grey, grey, grey)).save(folder / 'JPEGImages' / f'{name}.jpg', quality=100)
        objects = ''.join(
            f'<object><name>{thing}</name><pose>Rear</pose><truncated>0</truncated><difficult>{difficult}</difficult>'
            '<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>'
            # people come with parts, which are no objects of the task
            '<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>'
            for thing, difficult in things
        )
        text = f'<annotation><folder>VOC2007</folder><filename>{name}.jpg</filename>{objects}</annotation>'
        (folder / 'Annotations' / f'{name}.xml').write_text(text)
    for part in ('train', 'val', 'test'):
        names = [name for name, (split, _) in IMAGES.items() if split == part]
        (folder / 'ImageSets' / 'Main' / f'{part}.txt').write_text('\n'.join(names) + '\n')
    return tmp_path


def shown(data: VOC2007) -> list[dict[str, int]]:
    return [{name: value for name, value in zip(data.classes, row) if value} for row in data.labels.tolist()]


def test_an_image_is_of_every_class_it_shows_and_difficult_ones_do_not_count(voc):
    train = VOC2007(voc)
    assert train.labels.shape == (2, 20) and train.metric == '11-point mAP'
    assert shown(train) == [{'chair': 1, 'person': -1}, {'car': 1}]
    assert [train.raw(i)[0, 0, 0] for i in range(2)] == [5, 7]
    assert train[1]['data_samples']['label'].tolist() == train.labels[1].tolist()
    assert shown(VOC2007(voc, 'test')) == [{'dog': -1}]


def test_training_and_validation_images_together(voc):
    assert shown(VOC2007(voc, 'val')) == [{'horse': 1, 'person': 1}]
    both = VOC2007(voc, 'train+val')
    assert [both.path(i).stem for i in range(3)] == ['000005', '000007', '000009'] and both.labels.shape == (3, 20)


def test_the_classes_are_the_challenges_in_alphabetical_order():
    assert len(CLASSES) == 20 and sorted(CLASSES) == CLASSES and CLASSES[14] == 'person'


def test_what_is_missing_or_foreign_is_one_sentence(voc, tmp_path):
    with pytest.raises(UserError, match=r'VOC2007 cannot be read from .*gone: it wants VOCdevkit/VOC2007/ with'):
        VOC2007(tmp_path / 'gone')
    annotation = voc / 'VOCdevkit' / 'VOC2007' / 'Annotations' / '000005.xml'
    for broken in ('<annotation><object>', '<annotation><object><name>wolf</name></object></annotation>'):
        annotation.write_text(broken)
        with pytest.raises(UserError, match='VOC2007 cannot be read'):
            VOC2007(voc)
    annotation.unlink()
    with pytest.raises(UserError, match=r'where .*000005\.xml is missing'):
        VOC2007(voc)

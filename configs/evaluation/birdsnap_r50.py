# Birdsnap: 500 species of birds, scored by top-1 accuracy. Some photographs no longer exist on Flickr. Write lists of the
# photographs that you have, train.txt and test.txt, with one line per photograph: its path below download/images, which
# get_birdsnap.py creates, and the number of its species (from 0). The fraction of validation images is that of the
# published split.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(type='PublicImages', views=[{{_base_.test_view}}])
source = dict(type='CustomDataset', data_root='data/birdsnap', data_prefix='download/images')
evaluation = dict(
    train=dict(images, source=dict(source, ann_file='train.txt')),
    test=dict(images, source=dict(source, ann_file='test.txt')),
    held_out=4_981 / 47_386,
)

# Supervised pre-training on ImageNet with 10 coarse classes (Tab. 6 of Huang et al. 2022).
# Like the paper, this config uses the bottom-up clustering of Huh et al. (arXiv 1608.08614). Download their label sets by:
#   mkdir -p data/imagenet/huh && cd data/imagenet/huh
#   for set in up_down_2 up_down_10 down_up_79 up_down_127; do
#     curl -LO https://raw.githubusercontent.com/minyoungg/wmigftl/master/label_sets/hierarchy/train_$set.txt
#   done
_base_ = 'supervised_r50_100e.py'
custom_imports = dict(imports='projects.papers.taxonomies')
model = dict(classes=10)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='Relabelled',
        dataset={{_base_.train_dataloader.dataset}},
        labels='data/imagenet/huh/train_up_down_10.txt',
    )
)
assumptions = dict(
    taxonomy='the coarse classes are the label sets of Huh et al., which the paper probably uses as well: they include '
    '79 and 127 classes, and the ratio of their 2 classes is 1 : 327, as in the paper'
)

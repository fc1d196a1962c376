# Supervised on ImageNet relabeled along WordNet (Tab. 6): 10 classes.
# The taxonomy is a file of 'parent child' lines that you supply, such as ImageNet's wordnet.is_a.txt.
_base_ = 'supervised_r50_100e.py'
model = dict(classes=10)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='Relabelled',
        dataset={{_base_.train_dataloader.dataset}},
        taxonomy='data/imagenet/wordnet.is_a.txt',
        groups=10,
    )
)
assumptions = dict(
    taxonomy='classes are merged level by level from the deepest; the paper does not state its cuts'
)

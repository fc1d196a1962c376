# Supervised on ImageNet (Tab. 6): 2 balanced classes, artifact or not (the flat sign).
# The taxonomy is a file of 'parent child' lines that you supply, such as ImageNet's wordnet.is_a.txt.
_base_ = 'supervised_r50_100e.py'
model = dict(classes=2)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='Relabelled',
        dataset={{_base_.train_dataloader.dataset}},
        taxonomy='data/imagenet/wordnet.is_a.txt',
        groups='artifact',
    )
)

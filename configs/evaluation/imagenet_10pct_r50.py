# 10 % of ImageNet's labels: SimCLR's list of file names, one a line, as 10percent.txt.
# BYOL's protocol in place of MSBReg's: --recipe semi_byol.
_base_ = 'imagenet_r50.py'
evaluation = dict(
    train=dict(
        _delete_=True,
        type='ListedSubset',
        dataset={{_base_.evaluation.train}},
        list_file='data/imagenet/10percent.txt',
    )
)
recipes = dict(finetune='semi_10pct')
assumptions = dict(
    held_out='where labels are few, one labelled image of each class is held out to choose by; BYOL chooses on 10 009 others'
)

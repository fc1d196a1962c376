# 1 % of ImageNet's labels: SimCLR's list of file names, one a line, as 1percent.txt.
# BYOL's protocol in place of MSBReg's: --recipe semi_byol.
_base_ = 'imagenet_r50.py'
evaluation = dict(
    train=dict(
        _delete_=True,
        type='ListedSubset',
        dataset={{_base_.evaluation.train}},
        list_file='data/imagenet/1percent.txt',
    )
)
recipes = dict(finetune='semi_1pct')

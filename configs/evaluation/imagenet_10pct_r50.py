# 10 % of ImageNet's labels. The file 10percent.txt is SimCLR's list of these images, with one file name per line.
# The recipe is MSBReg's. To use BYOL's protocol instead, add --recipe semi_byol.
_base_ = 'imagenet_r50.py'
evaluation = dict(
    train=dict(
        _delete_=True,
        type='Subset',
        dataset={{_base_.evaluation.train}},
        files='data/imagenet/10percent.txt',
    )
)
recipes = dict(finetune='semi_10pct')
assumptions = dict(
    held_out='with few labels, one labeled image per class is held out for the selection of settings; BYOL uses 10 009 '
    'other images'
)

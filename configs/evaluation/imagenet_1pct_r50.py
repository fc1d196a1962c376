# 1 % of ImageNet's labels: SimCLR's list of file names, one per line, in 1percent.txt.
_base_ = 'imagenet_10pct_r50.py'
evaluation = dict(train=dict(list_file='data/imagenet/1percent.txt'))
recipes = dict(finetune='semi_1pct')

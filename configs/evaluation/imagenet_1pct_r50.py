# 1 % of ImageNet's labels. The file 1percent.txt is SimCLR's list of these images, with one file name per line.
_base_ = 'imagenet_10pct_r50.py'
evaluation = dict(train=dict(files='data/imagenet/1percent.txt'))
recipes = dict(finetune='semi_1pct')

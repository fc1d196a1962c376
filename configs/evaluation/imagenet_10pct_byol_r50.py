# 10 % of ImageNet's labels by BYOL's protocol: the whole network is fine-tuned, and the learning rate and the number of
# epochs are selected on held-out images.
_base_ = 'imagenet_10pct_r50.py'
recipes = dict(finetune='semi_byol')

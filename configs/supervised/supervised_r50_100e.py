# Supervised pre-training by the same runner as the frameworks (Tab. 6 of Huang et al. 2022): crop and flip, batch 1024,
# 100 epochs. Batch norm is synchronized, as in the frameworks. In the paper's release, it is per GPU. The paper does
# not state the learning rate. The rate of 0.1 per 256 images and the weight decay of 1e-4 are usual for ImageNet.
_base_ = ['../mocov2plus_r50_200e.py', '../_base_/views/byol.py']
model = dict(
    _delete_=True,
    type='Classifier',
    backbone={{_base_.model.backbone}},
    in_channels=2048,
    classes=1000,
    data_preprocessor={{_base_.model.data_preprocessor}},
)
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_flip}}]))
optim_wrapper = dict(optimizer=dict(lr=0.4))
train_cfg = dict(max_epochs=100)
assumptions = dict(
    supervised_rate='supervised models have a learning rate of 0.1 per 256 images and a weight decay of 1e-4; the '
    'paper states no learning rate',
    supervised_norm='supervised models have SyncBN, like the frameworks; in the release, batch norm is per GPU',
)

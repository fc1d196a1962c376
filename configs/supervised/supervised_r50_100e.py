# Supervised pre-training in the same runner (Tab. 6): crop and flip, batch 1024, 100 epochs.
# The batch norms are synchronised, as in the frameworks; the release's are each GPU's own.
# The paper gives no rate for it; 0.1 per 256 images and decay 1e-4 are the usual ones of ImageNet training.
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
    supervised_rate='supervised rows have 0.1 per 256 images and decay 1e-4; the paper gives no rate',
    supervised_norm="supervised rows have SyncBN, as the frameworks; the release's batch norm is each GPU's own",
)

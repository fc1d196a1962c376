# DINO's linear evaluation of small ViTs: class tokens of the last four layers, learning rate 0.001 per 256 images with a
# cosine to 0, no weight decay. For ViT-B, DINO uses the class token and the mean patch feature of the last layer: set
# model.layers=1 and model.pooling='both'.
_base_ = 'linear_sgd_100e.py'
model = dict(layers=4, pooling='cls')
total_batch_size = 1024
optim_wrapper = dict(optimizer=dict(lr=0.004))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=100,
        convert_to_iter_based=True,
    )
]
sweep = dict(lr=[0.0004, 0.004, 0.04, 0.4], weight_decay=[0.0])

# DINOv2's linear evaluation: 12 500 steps of 1024 images, a learning rate with a cosine to 0, no weight decay. With
# --sweep, 52 classifiers are trained in one pass: 13 rates, the class tokens of the last layer or of the last four, with
# and without the mean patch feature. DINOv2 selects the best classifier on its test images, and this recipe on held-out
# training images.
_base_ = 'linear_sgd_100e.py'
model = dict(layers=4, pooling='both')
total_batch_size = 1024
optim_wrapper = dict(optimizer=dict(lr=0.004))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=10)
rates = [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1]
sweep = dict(
    # The rates are per 256 images, and a batch has four times as many.
    lr=[4 * rate for rate in rates],
    weight_decay=[0.0],
    layers=[1, 4],
    pooling=['cls', 'both'],
)

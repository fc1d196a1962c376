# Training with 1 % of ImageNet's labels by MSBReg's recipe: the backbone is frozen, and the classifier has a learning rate
# of 2.0.
_base_ = 'linear_sgd_100e.py'
total_batch_size = 1024
optim_wrapper = dict(optimizer=dict(lr=2.0, nesterov=True))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=60,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=60)
assumptions = dict(
    semi='with 1 % of the labels, training takes 60 epochs, and the learning rate follows a cosine; MSBReg states no '
    'number of epochs'
)

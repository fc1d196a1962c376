# The linear evaluation of SGD-trained networks in Huang et al. 2022: a learning rate of 30, which drops after 60 and 80
# epochs, and no weight decay.
_base_ = '../default_runtime.py'
model = dict(type='Classifier', frozen=True)
train_view = [
    dict(type='RandomResizedCrop'),
    dict(type='RandomFlip', p=0.5),
]
total_batch_size = 256
optim_wrapper = dict(
    type='AutocastOptimWrapper',
    optimizer=dict(type='SGD', lr=30.0, momentum=0.9, weight_decay=0.0),
)
param_scheduler = [dict(type='MultiStepLR', milestones=[60, 80], gamma=0.1, by_epoch=True)]
train_cfg = dict(by_epoch=True, max_epochs=100)
# With --sweep, classifiers with all pairs of these values are trained in one pass. The best classifier on held-out images is
# tested.
sweep = dict(lr=[0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0], weight_decay=[0.0, 1e-6, 1e-5, 1e-4])

# scikit-learn's digits, enlarged to 32 pixels; validation is a part of train.
evaluation = dict(
    train=dict(type='Digits', split='train', size=32),
    test=dict(type='Digits', split='val', size=32),
    batch_size=256,
)

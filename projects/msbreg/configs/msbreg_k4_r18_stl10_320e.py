# MSBReg with batch norm and K = 4 views on STL-10, whose images are in folders, with the batch of Table 4.
# Learning rate: base 0.5 x batch 256 / 256 x 4 views = 2.
_base_ = 'msbreg_k4_r18_in100_320e.py'
model = dict(
    head=dict(
        terms=[dict(type='BrownianTerm', weight=5e-2), dict(type='SingularValueTerm', weight=0.004)]
    )
)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='UnlabelledFolder',
        root='data/stl10/unlabeled',
        views=[{{_base_.view}}] * 4,
    )
)
evaluation = dict(train=dict(root='data/stl10/train'), test=dict(root='data/stl10/test'))
total_batch_size = 256
auto_scale_lr = dict(base_batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=2.0))
assumptions = dict(
    stl10_crop="crops of STL-10 images have 224 pixels; the text says that they are resized 'back to the original "
    "size', which is 96",
    stl10_weights='K is 4 and lambda_s is 0.004; Table 4 does not state them',
)

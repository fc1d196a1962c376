# Detection on synthetic scenes. Neck and head have no batch norm, as in the C4 detectors of Huang et al. 2022. When SGD
# fine-tunes these detectors, they suffer from the large weights of LARS. scenes_det.py has batch norm in the neck, as in
# the FPN detectors of Huang et al. 2022. With the learning rate of scenes_det.py (0.02), or with 0.01 and without gradient
# clipping, the losses become NaN within 50 iterations.
_base_ = 'scenes_det.py'
model = dict(neck=dict(norm_cfg=None))
optim_wrapper = dict(optimizer=dict(lr=0.01), clip_grad=dict(max_norm=35, norm_type=2))

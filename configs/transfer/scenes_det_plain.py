# Detection on synthetic scenes. Neck and head have no norm layers, as in the paper's C4 detectors, whose fine-tuning with SGD
# suffers from the large weights of LARS. scenes_det.py has batch norm in the neck, as in the paper's FPN detectors.
# At the rate of scenes_det.py (0.02), or at 0.01 with unclipped gradients, its losses become NaN within 50 iterations.
_base_ = 'scenes_det.py'
model = dict(neck=dict(norm_cfg=None))
optim_wrapper = dict(optimizer=dict(lr=0.01), clip_grad=dict(max_norm=35, norm_type=2))

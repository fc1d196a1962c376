# Detection on synthetic scenes without new normalization: neck and head have none, as in the paper's C4 detectors, which suffer
# from the long weights that LARS leaves when SGD fine-tunes. scenes_det.py adds batch norm to the neck, as FPN does there.
# At the rate of scenes_det.py (0.02), or at 0.01 with unclipped gradients, its losses become NaN within 50 iterations.
_base_ = 'scenes_det.py'
model = dict(neck=dict(norm_cfg=None))
optim_wrapper = dict(optimizer=dict(lr=0.01), clip_grad=dict(max_norm=35, norm_type=2))

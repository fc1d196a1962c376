# S-MoCo v2+ (Fig. 1d of Huang et al. 2022). The teacher has a predictor as well, which is a moving average of the
# student's, like its other layers.
__method__ = 'smocov2plus'
_base_ = 'mocov2plus_r50_200e.py'
# The last layers of projector and predictor have no bias, as in the paper's release. The paper does not mention this.
model = dict(
    teacher_predictor=True, projector=dict(last_bias=False), predictor=dict(last_bias=False)
)
assumptions = dict(
    last_bias='S-MoCo v2+ drops the bias of the last layers, like the release; the paper does not mention it'
)

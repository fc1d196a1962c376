# SimCLR with its own projector, as in BYOL's Fig. 3, Tab. 16 and Tab. 17. (Tab. 5b gives SimCLR the projector of BYOL.) With
# beta 1, the loss is SimCLR's NT-Xent times a constant.
_base_ = 'simclr_r50_300e.py'
model = dict(projector=dict(hidden_channels=2048, out_channels=128))
assumptions = dict(
    simclr="SimCLR's own projector has the widths 2048 and 128, as in its release; BYOL's Tab. 16 and 17 state no widths"
)

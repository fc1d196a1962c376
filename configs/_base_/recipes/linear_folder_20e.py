# Linear evaluation on labeled folders, where nothing is known about the number of images. The batches are small, so that 100
# images are enough for 80 steps. The learning rate is chosen by a sweep.
_base_ = 'linear_shapes_20e.py'
total_batch_size = 32
sweep = dict(weight_decay=[0.0])

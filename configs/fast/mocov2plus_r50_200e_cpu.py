# MoCo v2+ with speed settings for CPUs. Method and schedule are unchanged.
_base_ = ['../mocov2plus_r50_200e.py', '../_base_/fast_cpu.py']

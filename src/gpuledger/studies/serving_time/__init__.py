"""Serving time: how well do kernels alone predict a served model's steps?"""

from gpuledger.studies.serving_time.reduction import reduce

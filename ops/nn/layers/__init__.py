"""Layers: pytrees that are networks and their parts."""

from . import initializers as initializers
from .attention_layers import *
from .containers import *
from .conv_layers import *
from .dense import *
from .layer import *
from .norm_layers import *
from .recurrent_layers import *
from .summary import *
from .weights import *

__all__ = [
    "GRU",
    "LSTM",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Embedding",
    "Flatten",
    "Function",
    "GlobalAvgPool",
    "GroupNorm",
    "InstanceNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "MaxPool",
    "MultiHeadAttention",
    "Branches",
    "RMSNorm",
    "Residual",
    "Sequential",
    "Summary",
    "combine",
    "init",
    "load_weights",
    "named_weights",
    "parameters",
    "partition",
    "save_weights",
    "summary",
]

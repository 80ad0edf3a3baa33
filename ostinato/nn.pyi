from ostinato.ops.nn import initializers as initializers
from ostinato.ops.nn.attending import *
from ostinato.ops.nn.composed_layers import *
from ostinato.ops.nn.convolution import *
from ostinato.ops.nn.layers import *
from ostinato.ops.nn.losses import *
from ostinato.ops.nn.normalization import *
from ostinato.ops.nn.pooling import *
from ostinato.ops.nn.recurrence import *
from ostinato.ops.nn.upsampling import *

from ostinato.ops.signal import *

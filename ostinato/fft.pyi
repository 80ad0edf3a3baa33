from ostinato.ops.fft import *

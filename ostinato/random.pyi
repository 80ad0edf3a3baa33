from ostinato.ops.random.random import *

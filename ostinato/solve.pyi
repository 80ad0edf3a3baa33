from ostinato.ops.solve import *

from ostinato.ops.special.composed_functions import *
from ostinato.ops.special.special_functions import *

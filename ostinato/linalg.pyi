from ostinato.ops.linalg.banded import *
from ostinato.ops.linalg.functions import *
from ostinato.ops.linalg.matrix_functions import *
from ostinato.ops.linalg.structured import *

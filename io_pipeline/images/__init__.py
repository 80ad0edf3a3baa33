"""Stages of images. Importing this makes them methods of pipes."""

from . import colour as colour
from . import decode as decode
from . import filters as filters
from . import finish as finish
from . import geometry as geometry
from . import mixing as mixing
from . import object_boxes as object_boxes
from . import policies as policies
from . import warps as warps

"""Stages of volumes. Importing this makes them methods of pipes."""

from . import elastic as elastic
from . import intensity as intensity
from . import volume_geometry as volume_geometry

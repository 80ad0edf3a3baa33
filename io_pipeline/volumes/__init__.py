"""Stages of volumes. Importing this makes them methods of pipes."""

from . import elastic as elastic
from . import geometry as geometry
from . import intensity as intensity

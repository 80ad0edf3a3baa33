"""Setuptools, but for editable installs: links instead of a hook for imports, so that editors and type
checkers find the rooms, which lie beside the package, in it. Python imports the files that are linked."""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (what builds wheels)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Whoever asks for another mode gets that."""
    settings = {"editable_mode": "strict", **(config_settings or {})}
    return build_meta.build_editable(wheel_directory, settings, metadata_directory)

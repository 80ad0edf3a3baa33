"""Plans of tests are kept nowhere on disk, unless a test says so."""

from __future__ import annotations

import os

os.environ.setdefault("OSTINATO_CACHE", "off")

import signal

from ostinato.runtime.crew.crew import job_size

import ostinato as ost

from . import fake_device  # noqa: F401  (OSTINATO_DEVICE=fake runs tests there)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off behind `&`

if job_size() > 1:  # under mpiexec the first process runs the tests, and the others leave here
    ost.connect()

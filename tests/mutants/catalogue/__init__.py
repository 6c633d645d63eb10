"""All mutants, one module for each package; every module has ``MUTANTS``."""

from __future__ import annotations

import importlib
import pkgutil

from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    mutant
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    for mutant in importlib.import_module(f"{__name__}.{module.name}").MUTANTS
]

"""Python files that belong to a pipeline: loaded from where they are, under a name that nothing else has."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tidelog.client.faults import BadOption


def load_module(path: Path) -> ModuleType:
    """A module from a file, under a name that nothing else has; the same file gives the same module."""
    name = "tidelog_pipeline_" + "".join(char if char.isalnum() else "_" for char in str(path.absolute()))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise BadOption(f"{path.name} is neither YAML nor Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

"""Python files that belong to a pipeline: loaded from where they are, under a name that nothing else has.

Such a file may import modules and packages that lie beside it. Executors do not have them: what the file has
imported from its folder goes there as one zip (`neighbours_zip`). The file itself is pickled by value.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

from tidelog.client.faults import BadOption

_PREFIX = "tidelog_pipeline_"


def load_module(path: Path) -> ModuleType:
    """A module from a file, under a name that nothing else has; the same file gives the same module."""
    name = _PREFIX + "".join(char if char.isalnum() else "_" for char in str(path.absolute()))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise BadOption(f"{path.name} is neither YAML nor Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        # At the end: a file beside a pipeline's takes no other module's place.
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def neighbours() -> list[Path]:
    """The modules (files) and packages (folders) that lie beside loaded files and have been imported."""
    loaded = dict(sys.modules)
    folders = {_file(module).parent for name, module in loaded.items() if name.startswith(_PREFIX)}
    found = set()
    for name, module in loaded.items():
        if "." in name or name == "__main__" or name.startswith(_PREFIX):
            continue
        file = _file(module)
        place = file.parent if file.name == "__init__.py" else file
        if place.parent in folders and file.suffix == ".py":
            found.add(place)
    return sorted(found)


def _file(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "/").absolute()


def neighbours_zip(target: Path) -> Path | None:
    """What `neighbours` names, as a zip that Python imports from; None when there are none."""
    places = neighbours()
    if not places:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for place in places:
            files = [place] if place.is_file() else sorted(place.rglob("*"))
            for file in files:
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(place.parent))
    return target

"""Compiles the native kernels when fedkeel is installed or a wheel is built; `scripts/native.py` does the work."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    """An editable installation gets its libraries in the working tree, a wheel inside of it."""

    _scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is put together."""
        root = Path(self.root)
        native = _native(root)
        place = root / native.HERE
        editable = version == "editable"
        if not editable:
            self._scratch = Path(tempfile.mkdtemp(prefix="fedkeel-native-"))
        into = place / "lib" if self._scratch is None else self._scratch
        try:
            outcome = native.build(place / "kernels", into)
        except native.BuildError as error:
            self._clean()
            self.app.abort(f"fedkeel: {error}")
        if outcome.warning:
            self.app.display_warning(f"fedkeel: {outcome.warning}")
        if editable:
            return
        target = native.HERE.relative_to("src") / "lib"
        build_data["force_include"] |= {str(path): str(target / path.name) for path in into.iterdir()}
        if outcome.made:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """When the wheel is there."""
        self._clean()

    def _clean(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _native(root: Path) -> Any:
    """The module `scripts/native.py`."""
    spec = importlib.util.spec_from_file_location("fedkeel_native", root / "scripts" / "native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module

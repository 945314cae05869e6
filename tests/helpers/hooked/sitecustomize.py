"""Changes a program of a deployment from inside, before it begins: Python imports this by itself.

`FEDKEEL_TEST_HOOK` says which one and by what, such as `fedkeel.deploy.service=tests.helpers.tampered:install`.
"""

import os
import sys
from importlib import import_module

_PROGRAM, _, _HOOK = os.environ.get("FEDKEEL_TEST_HOOK", "").partition("=")
if _HOOK and _PROGRAM in sys.orig_argv:
    _MODULE, _, _NAME = _HOOK.partition(":")
    getattr(import_module(_MODULE), _NAME)()

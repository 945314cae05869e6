"""Flower carries the messages: the only folder that imports flwr."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    from fedkeel.errors import InputError

    raise InputError("a deployment needs Flower; run pip install 'fedkeel[flower]'")

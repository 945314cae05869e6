"""Which method."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, model_validator

from fedkeel import methods
from fedkeel.config.section import RULES, Section, named
from fedkeel.methods import ClientRule, ServerRule


class AlgorithmSettings(Section):
    """Which method, with its hyper-parameters; those not given get the method's defaults.

    A method is known by its name, or as `module:name` of the user's own.
    """

    model_config = ConfigDict(extra="allow")

    name: str = "fedavg"
    """The method: a name from `fedkeel list algorithms`, or `module:name` of your own method."""
    client: str | None = None
    """Take the client rule from this method instead of `name`, or from `module:name` of your own rule."""
    server: str | None = None
    """Take the server rule from this method instead of `name`, or from `module:name` of your own rule."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        name, given = named(values, cls.model_fields["name"].default)
        rules = {side: given.pop(side, None) for side in RULES}
        rules = {side: str(rule).lower() if isinstance(rule, bool) else rule for side, rule in rules.items()}
        if name is None or not all(isinstance(rule, str | None) for rule in rules.values()):
            return values
        client, server = methods.compose(name, **rules).rules(given)
        return {"name": name, **rules, **client.model_dump(), **server.model_dump()}

    @property
    def label(self) -> str:
        """The method's name, or those of the two whose rules are combined."""
        return self._method.name

    @property
    def _method(self) -> methods.Method:
        return methods.compose(self.name, self.client, self.server)

    def rules(self) -> tuple[ClientRule, ServerRule]:
        """The client rule and the server rule."""
        return self._method.rules(self.model_extra or {})

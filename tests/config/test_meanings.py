"""Every setting is explained in its source, and the explanation is found."""

import linecache
import re
import sys
import types

import pytest
from pydantic import BaseModel, Field

from fedkeel import ClientRule, models
from fedkeel.config import catalogue
from fedkeel.config.meanings import meaning
from fedkeel.config.section import Section
from fedkeel.methods.fedasync import fedasync
from fedkeel.methods.fedavg import UniformAverage
from fedkeel.study.files import StudyFile

SENTENCE = re.compile(r"[A-Z`].*\.", re.DOTALL)
BREAK = re.compile(r"(?<!al)(?<!Eq)\. (?=[A-Z`])")
"""Between two sentences; 'et al.' and 'Eq.' end none."""


def fields() -> list[tuple[type[BaseModel], str]]:
    sections = dict.fromkeys([*catalogue.sections(), StudyFile])
    return [(section, name) for section in sections for name in section.model_fields]


def objection(text: str) -> str | None:
    if not SENTENCE.fullmatch(text):
        return "no sentence"
    return "too long" if len(BREAK.split(text)) > 3 else None


def test_every_setting_is_explained_in_one_to_three_sentences() -> None:
    found = fields()
    assert len(found) > 200
    wrong = {f"{s.__name__}.{name}": meaning(s, name) for s, name in found if objection(meaning(s, name))}
    assert wrong == {}
    options = {option for name in models.names() for option in models.options(name)}
    assert {name for name in options if objection(models.option(name).meaning)} == set()


@pytest.mark.parametrize("text", ["", "no capital.", "No full stop", "One. Two. Three. Four."])
def test_what_is_no_explanation(text: str) -> None:
    assert objection(text)


class Base(Section):
    width: int = 3
    """How wide
    it is."""
    bare: int = 1
    told: int = Field(default=1, description="Told otherwise.")
    """Not this."""


class Derived(Base):
    width: int = 4
    bare: int = 2
    """Now it says something."""


def test_a_class_inherits_what_it_does_not_say_itself() -> None:
    assert meaning(Base, "width") == meaning(Derived, "width") == "How wide it is."
    assert (meaning(Base, "bare"), meaning(Derived, "bare")) == ("", "Now it says something.")
    assert meaning(Derived, "told") == "Told otherwise."
    assert meaning(UniformAverage, "weighting").startswith("How clients count in the mean")
    assert "rho in the paper" in meaning(fedasync.client, "mu")


def test_a_class_inside_a_function() -> None:
    class Inner(Section):
        depth: int = 1
        """How deep it is."""

    assert meaning(Inner, "depth") == "How deep it is."


CELL = """
class Mine(ClientRule):
    rho: float = 0.1
    \"\"\"The radius.\"\"\"

    def step(self, job, w, oracle):
        return w
"""


def made_in(cell: str, file: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> type[ClientRule]:
    """A class as a notebook or Python's prompt makes it: its module has no file."""
    module = types.ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", module)
    vars(module).update(ClientRule=ClientRule)
    if known:
        monkeypatch.setitem(linecache.cache, file, (len(cell), None, cell.splitlines(keepends=True), file))
    exec(compile(cell, file, "exec"), vars(module))
    found = vars(module)["Mine"]
    assert issubclass(found, ClientRule)
    return found


def test_a_rule_in_a_notebook_is_found_by_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meaning(made_in(CELL, "<ipython-input-7>", True, monkeypatch), "rho") == "The radius."


def test_where_the_source_is_gone_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meaning(made_in(CELL, "<stdin>", False, monkeypatch), "rho") == ""

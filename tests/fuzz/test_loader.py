"""The loader of experiments against files and settings that nobody would write."""

import errno
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings

from fedkeel import Experiment, InputError
from fedkeel.config import yamltext
from tests.helpers import mutations, promise

CORPUS = Path(__file__).parent / "corpus"
often = settings(max_examples=100, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiments")


@pytest.mark.slow
@often
@given(tree=mutations.trees(), overrides=mutations.overrides)
def test_mutated_settings(folder: Path, tree: object, overrides: list[str]) -> None:
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    promise.load(path, [])
    promise.load(path, overrides)


@pytest.mark.slow
@often
@given(text=mutations.texts())
def test_mutated_text(folder: Path, text: bytes) -> None:
    path = folder / "text.yaml"
    path.write_bytes(text)
    promise.load(path, [])


@often
@given(overrides=mutations.overrides)
@example(overrides=["x." * 3000 + "x=1"])
@example(overrides=["local.lr=" + "1" * 200_000])
def test_settings_on_the_command_line(overrides: list[str]) -> None:
    promise.load(None, overrides)


LOADS = {path.stem for path in CORPUS.glob("*.yaml") if path.stem.endswith(("loads", "load"))}
SAID = {
    "alias-bomb": "aliases make more than 10,000 values",
    "merge-bomb": "aliases make more than 10,000 values",
    "anchor-in-itself": "line 1, column 1: an alias contains itself",
    "anchor-in-its-section": "an alias contains itself",
    "anchor-in-its-key": "an alias contains itself",
    "merge-of-itself": "an alias contains itself",
    "deep-lists": "more than 50 sections or lists inside each other",
    "deep-sections": "line 50, column 50: more than 50 sections",
    "deep-option": "more than 50 sections or lists",
    "tag-python-object": "the tag '!!python/object/apply:os.system' is not",
    "tag-python-name": "the tag '!!python/name:os.system' is not supported",
    "tag-own": "the tag '!mine' is not supported",
    "tag-binary": "clients must be an integer; got b'hello'",
    "tag-binary-broken": "failed to convert base64 data",
    "tag-set": "local must be a section of settings, such as local.epochs; got {'epochs', 'lr'}",
    "tag-set-of-a-list": "line 1, column 8: a section was expected here",
    "tag-set-of-a-word": "a section was expected here",
    "tag-map-of-a-list": "a section was expected here",
    "tag-list-of-a-word": "expected a sequence node, but found scalar",
    "tag-str-of-a-list": "expected a scalar node, but found sequence",
    "tag-merge": "the tag '!!merge' is not supported",
    "tag-omap": "the tag '!!omap' is not supported",
    "tag-pairs": "the tag '!!pairs' is not supported",
    "tag-timestamp": "seed must be an integer; got 2001-01-01 00:00:00+00:00",
    "tag-timestamp-broken": "'never' is not a valid timestamp",
    "tag-int-broken": "is not valid YAML; line 1, column 7: 'many' is not a valid int",
    "tag-float-broken": "'much' is not a valid float",
    "date-that-is-none": "'2001-99-99' is not a valid timestamp",
    "duplicate-keys": "clients is given twice",
    "duplicate-keys-below": "lr is given twice",
    "merge-of-a-number": "expected a mapping or list of mappings for merging",
    "merge-of-numbers": "expected a mapping for merging",
    "key-number": "1 is not a setting",
    "key-number-below": "local.1 is not a setting; local has the settings batch_size",
    "key-null": "None is not a setting",
    "key-list": "unhashable key",
    "key-section": "unhashable key",
    "key-set": "unhashable key",
    "key-true": "True is not a setting",
    "key-date": "2001-01-01 is not a setting",
    "key-nan": "nan is not a setting",
    "key-bytes": "b'hello' is not a setting",
    "key-line-break": "'clients\\nrounds' is not a setting",
    "key-long": "xxx...xxx",
    "key-empty": "'' is not a setting",
    "tabs": "line 2, column 1: a tab; indent with spaces",
    "utf-16": "is not valid YAML (not UTF-8: byte 0xff at 0); save it in UTF-8",
    "utf-16-unmarked": "unacceptable character #x0000",
    "utf-32": "not UTF-8",
    "latin-1": "not UTF-8: byte 0xfc at 8",
    "nul": "unacceptable character #x0000",
    "nul-in-name": "not starting with a dot; got 'a\\x00b'",
    "escape-in-name": "not starting with a dot; got '\\x1b[31mred'",
    "line-separator-in-name": "not starting with a dot; got 'a\\u2028b'",
    "half-a-character": "'\\ud800' has half of a character",
    "half-a-character-raw": "not UTF-8: byte 0xed at 6",
    "half-a-character-as-key": "'\\udfff' has half of a character",
    "long-name": "name must be 1 to 100 printable bytes",
    "wide-name": "name must be 1 to 100 printable bytes",
    "long-word": "dataset.name: 'xxx",
    "huge-integer": "an integer of more than 1000 digits",
    "huge-hexadecimal": "an integer of more than 1000 digits",
    "huge-binary": "an integer of more than 1000 digits",
    "huge-seed": "seed must be less than 18446744073709551616; got 18446744073709551616",
    "overflow": "local.lr must be a finite number; got inf",
    "overflow-to-integer": "clients must be a finite number; got inf",
    "nan": "local.momentum must be a finite number; got nan",
    "infinite": "limit_seconds must be a finite number; got inf",
    "true-for-a-number": "local.lr must be a number; got 'true'",
    "true-for-a-section": "local must be a section of settings, such as local.epochs; got 'true'",
    "number-for-a-switch": "evaluate_local must be true or false; got 3",
    "list-for-a-section": "fleet must be a section of settings, such as fleet.profile; got [1]",
    "section-for-a-number": "clients must be an integer; got {'a': 1}",
    "null-for-a-number": "clients must be an integer; got None",
    "empty-word": "dataset.name: '' is not known",
    "sexagesimal": "seed must be an integer; got '1:30'",
    "equals-sign": "clients must be an integer; got '='",
    "two-documents": "line 2, column 1: found another document",
    "version": "found incompatible YAML document",
    "undefined-alias": "found undefined alias 'nobody'",
    "unclosed": "line 2, column 1",
    "just-a-word": "must be a mapping such as 'clients: 100'; got text",
    "just-a-list": "must be a mapping such as 'clients: 100'; got a list",
    "many-unknown-keys": "k4 is not a setting",
}


def test_the_corpus_is_all_there() -> None:
    assert {path.stem for path in CORPUS.iterdir()} == LOADS | SAID.keys()


@pytest.mark.parametrize("name", sorted(SAID))
def test_a_file_that_is_refused(name: str) -> None:
    path = CORPUS / f"{name}.yaml"
    with pytest.raises(InputError) as caught:
        Experiment.load(path)
    promise.check_message(str(caught.value), [path.name], [])
    assert SAID[name] in str(caught.value)


@pytest.mark.parametrize("name", sorted(LOADS))
def test_a_file_that_is_fine(name: str, tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes((CORPUS / f"{name}.yaml").read_bytes())
    assert promise.load(path, []) is not None


def test_what_the_fine_ones_say() -> None:
    assert Experiment.load(CORPUS / "octal-loads.yaml").seed == 10  # as in YAML 1.2, never 8
    assert Experiment.load(CORPUS / "underscores-load.yaml").seed == 1000
    merged = Experiment.load(CORPUS / "merge-loads.yaml")
    assert (merged.clients, merged.rounds) == (7, 3)


def test_too_long_a_file_is_not_even_parsed(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_bytes(b"# " + b"x" * yamltext.LONGEST)
    with pytest.raises(InputError, match=r"long\.yaml must have at most 100,000 bytes"):
        Experiment.load(path)
    with pytest.raises(InputError, match="must have at most 100,000 bytes"):
        Experiment.load("/dev/zero")


@pytest.mark.slow
def test_too_many_values_are_not_even_built(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("clients: [" + "1," * 20_000 + "]")
    with pytest.raises(InputError, match=r"many\.yaml is not valid YAML; line 1, column .*: more than 10,000 values"):
        Experiment.load(path)


@pytest.mark.slow
def test_an_experiment_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text("model: {name: 'a:b', x: " + "[" * 40 + "1, " * 4000 + "]" * 40 + "}")
    experiment = Experiment.load(path)
    with pytest.raises(InputError, match="more than 100,000 bytes as YAML"):
        experiment.to_yaml()


def test_only_a_few_of_many_problems_are_told() -> None:
    with pytest.raises(InputError) as caught:
        Experiment.load(CORPUS / "many-unknown-keys.yaml")
    lines = str(caught.value).split("\n")
    assert len(lines) == 6
    assert lines[-1] == "and more"


def test_things_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name, said in {
        "pipe.yaml": "named pipe",
        ".": "Is a directory",
        "none.yaml": "No such file",
        "loop.yaml": "symbolic links",
        "none.yaml/x": "No such file",
        "a\0b": "no file can have such a name",
        "\ud800": "no file can have such a name",
        "x" * 300: "File name too long",
        "x/" * 3000: "File name too long",
    }.items():
        with pytest.raises(InputError, match=said) as caught:
            Experiment.load(tmp_path / name)
        promise.check_message(str(caught.value), ["experiment file"], [])

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")  # the superuser may read everything

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"e\.yaml cannot be read \(Permission denied\); give the path of a YAML file"):
        Experiment.load(tmp_path / "e.yaml")


def test_a_shells_pipe_is_read() -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"clients: 7\n")
        os.close(write)
        assert Experiment.load(f"/dev/fd/{read}").clients == 7
    finally:
        os.close(read)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("a..b=1", "a setting must be key=value, such as local.lr=0.05; got 'a..b=1'"),
        ("=", "a setting must be key=value, such as local.lr=0.05; got '='"),
        ("=1", "a setting must be key=value, such as local.lr=0.05; got '=1'"),
        ("x", "a setting must be key=value, such as local.lr=0.05; got 'x'"),
        (".=1", "a setting must be key=value, such as local.lr=0.05; got '.=1'"),
        ("x.=1", "a setting must be key=value, such as local.lr=0.05; got 'x.=1'"),
        ("x=", "x is not a setting"),
        ("clients=", "clients must be an integer; got None"),
        ("clients=[1,", "clients must be a YAML value; got '[1,' (line 1, column 4: expected the node content, but"),
        (
            "clients=\udcff",
            "clients must be a YAML value; got '\\udcff' (unacceptable character #xdcff: special characters",
        ),
        ("local.lr.x=3", "local.lr must be a number; got {'x': 3}"),
        ("local={1: 2}", "local.1 is not a setting"),
        ("model={1: 2}", "model.1 is not a setting of mlp-400; mlp-400 has only the setting projection"),
        ('model={name: "a:b", "\\ud800": 3}', "has half of a character"),
        ("x." * 3000 + "x=1", "such as local.lr=0.05; got 'x.x.x"),
        ("clients=&a [*a]", "an alias contains itself"),
        ("faults.corruptions=nan", "faults.corruptions must be a list such as [a, b]; got 'nan'"),
        ("faults.corruptions=[]", "faults.corruptions must be a list of at least 1; got []"),
        (
            "faults.corruptions=[nan, x]",
            "faults.corruptions.1 must be 'nan', 'infinite', 'huge', 'shape', 'dtype' or 'future'; got 'x'",
        ),
        ("a\nb=1", "'a\\nb' is not a setting"),
        ("client=0x" + "f" * 5000, "an integer of more than 1000 digits"),
        ("seed=" + "9" * 200_000, "more than 100,000 characters"),
    ],
)
def test_settings_that_are_refused(override: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment.load(overrides=[override])
    assert said in str(caught.value)


def test_options_that_no_file_can_hold() -> None:
    experiment = Experiment(model={"name": "some:thing", "where": Path("x")})
    with pytest.raises(InputError, match=r"PosixPath\('x'\) cannot be written into an experiment file"):
        experiment.to_yaml()


def test_the_whole_key_is_named() -> None:
    with pytest.raises(
        InputError, match=r"^local\.lr\.x: local\.lr is 1, which has no settings below it; make local\.lr a section$"
    ):
        Experiment.load(overrides=["local={lr: 1}", "local.lr.x=3"])


def test_numbers_that_python_cannot_write_down() -> None:
    huge = 10**5000
    for values in ({"seed": huge}, {"local": {"lr": huge}}, {"model": {"projection": huge}}, {"partition": {huge: 1}}):
        with pytest.raises(InputError):
            Experiment(**values)

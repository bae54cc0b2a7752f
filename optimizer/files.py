"""Answers as files: YAML, or JSON where the name ends in .json."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from meshwright.hardware.errors import InputError, check_type, shown
from meshwright.hardware.figures import yaml_fault
from meshwright.hardware.files import read_text
from meshwright.optimizer.plan import Plan, Priced

Name = str | PathLike[str]
_WANTED = "a file that `meshwright recommend -o` or `estimate -o` wrote"
_PLAN = "a file that `meshwright recommend -o` wrote"
Made = TypeVar("Made", bound=Priced)


class Answer(Protocol):
    """What can be written: a plan, an estimate, a proven no, or a search cut short."""

    def to_dict(self) -> dict[str, Any]: ...


def to_json(answer: Answer, reasons: Mapping[str, Any] | None = None) -> str:
    """The bytes that `--json` prints and, without reasons, a .json file holds."""
    return json.dumps(answer.to_dict() | dict(reasons or {}), sort_keys=True, indent=2) + "\n"


def save_plan(plan: Answer, path: Name) -> None:
    """Write a plan, an estimate, or the exception that stands for no plan; a reader never sees half a file.

    Raises:
        InputError: the path cannot be written.
    """
    if not callable(getattr(plan, "to_dict", None)):
        raise InputError(f"plan is {shown(plan)}; give a Plan, what `recommend` returns")
    real = check_output(path)
    if real.suffix == ".json":
        text = to_json(plan)
    else:
        text = yaml.safe_dump(plan.to_dict(), sort_keys=True, default_flow_style=None, width=110)
    with replacing(real) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Name) -> Iterator[Path]:
    """A file to write beside `path`, of the same ending; it takes the place of `path` when the block ends well.

    Raises:
        InputError: the path cannot be written.
    """
    real = check_output(path)
    part = real.with_name(f".{real.stem[:80]}.{os.getpid()}.part{real.suffix[:20]}")
    try:
        yield part
        part.replace(real)
    except OSError as error:
        raise InputError(f"cannot write {real}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def check_output(path: Name) -> Path:
    """Where an answer would be written, links followed.

    Raises:
        InputError: it is no place for a file. Asked before a search, so that no answer is lost.
    """
    _check_name(path)
    try:
        real = Path(os.path.realpath(path))
        if real.is_dir():
            raise InputError(
                f"cannot write {path}: it is a folder; name a file in it, like {Path(path) / 'plan.yaml'}"
            )
        if not real.parent.is_dir():
            raise InputError(f"cannot write {path}: no folder {real.parent}; make it first")
        if real.exists() and not real.is_file():  # a rename would put a file in a device's place
            raise InputError(f"cannot write {path}: it is not a regular file; give the name of one")
    except (OSError, ValueError) as error:  # too long a name, a null byte
        reason = getattr(error, "strerror", None) or "not a path"
        raise InputError(f"cannot write {shown(str(path))}: {reason}") from None
    return real


def check_outputs(*paths: Name | None) -> None:
    """Places for several files, None for one that was not asked for; asked before a search.

    Raises:
        InputError: as `check_output`, or two are the same file.
    """
    real = [check_output(path) for path in paths if path is not None]
    for path in real:
        if real.count(path) > 1:
            raise InputError(f"{path} is to hold two answers; give each a file of its own")


def load_plan(path: Name) -> Plan:
    """Read the plan that `save_plan` wrote.

    Raises:
        InputError: not a plan file.
    """
    data = _read(path)
    if "certificate" not in data:
        raise InputError(
            f"{path}: the key certificate is missing; give {_PLAN}, or read an estimate with load_priced"
        )
    return _made(Plan, data, path)


def load_priced(path: Name) -> Priced:
    """Read a plan or an estimate, whichever the file holds.

    Raises:
        InputError: neither.
    """
    data = _read(path)
    return _made(Plan if "certificate" in data else Priced, data, path)


def _made(kind: type[Made], data: Mapping[str, Any], path: Name) -> Made:
    """The answer that a file holds; a refusal names the file."""
    try:
        return kind.from_dict(data)
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None


def _read(path: Name) -> Mapping[str, Any]:
    _check_name(path)
    path = Path(path)
    text = read_text(path, _WANTED)
    try:
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except RecursionError:
        raise InputError(f"cannot read {path}: it is nested too deeply; give {_WANTED}") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; give {_WANTED}"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not valid YAML{yaml_fault(error)}; give {_WANTED}") from None
    if not isinstance(data, dict) or "schema_version" not in data:
        raise InputError(f"{path} is not a plan file; give {_WANTED}")
    if (status := data.get("status")) is not None:  # written where a search had no plan to give
        raise InputError(f"{path} holds no plan but {status}: {data.get('reason')}")
    return data


def _check_name(path: Name) -> None:
    check_type("path", path, (str, PathLike), "the name of a file")
    if not os.fspath(path):
        raise InputError("the name of a file is empty; give one like plan.yaml")

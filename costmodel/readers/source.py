"""From a name, a path or an object to the configuration it means."""

import difflib
import json
import os
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, NoReturn

from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers.families import read_config
from meshwright.costmodel.readers.fields import show
from meshwright.hardware.errors import ModelError, UnknownNameError, check_type

MAX_BYTES: Final = 4 * 2**20  # the largest published config.json is far below 1 MB


def load_model(source: str | os.PathLike[str] | Mapping[str, object]) -> ModelSpec:
    """Read a model exactly, or raise ModelError with one line.

    `source` is a built-in name (see `model_names`; case does not matter), a path to a `config.json`, a folder
    that holds one, or the object itself. A built-in name wins over a folder of the same name: write `./name`.
    """
    if isinstance(source, Mapping):
        return read_config(source, own_name(source), "model config")
    taken = "a built-in name, the path of a config.json or its folder, or its content as a dict"
    check_type("model", source, (str, os.PathLike), taken, ModelError)
    text = os.fsdecode(source)
    if not text:
        raise ModelError(f"model is {source!r}; give {taken}")
    if isinstance(source, str) and text.lower() in (built_in := _files()):
        name = text.lower()
        return read_config(_parse(built_in[name].read_bytes(), name), name, name)
    return _load_path(text)


def model_names() -> list[str]:
    """Names of the built-in models."""
    return sorted(_files())


def model_sources() -> dict[str, str]:
    """Where each built-in configuration comes from."""
    return {n: str(_parse(p.read_bytes(), n)["_source"]) for n, p in sorted(_files().items())}


def _show_path(text: str) -> str:
    """A path on one line; its end says more than its start."""
    return ascii(text if len(text) <= 160 else "..." + text[-157:])


def own_name(raw: Mapping[str, object]) -> str:
    """What a configuration without a file calls itself."""
    for key in ("_name_or_path", "model_type"):
        value = raw.get(key)
        if isinstance(value, str) and value.strip("/"):
            name = value.rstrip("/").rsplit("/", 1)[-1][:80]
            return "".join(c if c.isprintable() else "?" for c in name)
    return "model"


def _files() -> dict[str, Traversable]:
    folder = resources.files("meshwright.costmodel") / "data" / "models"
    return {p.name.removesuffix(".json"): p for p in folder.iterdir() if p.name.endswith(".json")}


def _load_path(text: str) -> ModelSpec:
    label = _show_path(text)
    path = Path(text)
    try:
        if path.is_dir():
            path /= "config.json"
            label = _show_path(str(path))
            if not path.exists():
                raise ModelError(
                    f"the folder {_show_path(text)} holds no config.json; give the folder that does"
                )
        if not path.exists():
            _no_such(text)
        if not path.is_file():  # a device or a pipe would block or never end
            raise ModelError(f"{label} is not a regular file; give a config.json")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # too long a name, no permission, a null byte
        reason = getattr(error, "strerror", None) or "not a path"
        raise ModelError(f"{label} cannot be read: {reason}") from None
    folder = path.resolve().parent.name if path.name == "config.json" else path.stem
    return read_config(_parse(data, label), folder or path.stem, label)


def _no_such(text: str) -> NoReturn:
    """A string that names neither a model nor a file: say which it was likely meant to be."""
    names = model_names()
    if os.sep not in text and "/" not in text and not text.endswith(".json"):
        raise UnknownNameError("model", text, names, "or give the path of a config.json")
    stem = text.rstrip("/").rsplit("/", 1)[-1].removesuffix(".json").lower()
    close = difflib.get_close_matches(stem, names, n=2, cutoff=0.7)
    hint = f"; of the built-in models {' or '.join(close)} is near" if close else ""
    raise ModelError(f"no file or folder {_show_path(text)}; give the path of a config.json{hint}")


def _parse(data: bytes, label: str) -> dict[str, object]:
    """Strict JSON: UTF-8, no key twice, an object at the top. NaN and Infinity wait for a key to blame."""
    if len(data) > MAX_BYTES:
        raise ModelError(f"{label} is larger than {MAX_BYTES:,} bytes; a config.json is a few thousand")
    if not data.strip():
        raise ModelError(f"{label} is empty; give a config.json")

    def no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            twin = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise ModelError(f"{label} gives the key {show(twin)} twice; keep one")
        return made

    try:
        raw = json.loads(data.decode("utf-8-sig"), object_pairs_hook=no_twins)
    except UnicodeDecodeError as error:
        raise ModelError(f"{label} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{label} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; correct it there"
        ) from None
    except RecursionError:
        raise ModelError(f"{label} is nested too deeply to be a model configuration") from None
    except ValueError:  # an integer of more digits than Python converts
        raise ModelError(f"{label} holds a number of thousands of digits; correct it") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{label} holds {show(raw)} where a model configuration is an object {{...}}")
    return raw

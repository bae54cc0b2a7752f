"""A law as a file: keys in the order of the shipped files, the same bytes for the same law."""

from pathlib import Path

import yaml

from meshwright.hardware.errors import InputError
from meshwright.search.law import Law


def law_text(law: Law) -> str:
    """YAML that `load_law` reads back as an equal law."""
    found = law.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(found, sort_keys=False, width=110, allow_unicode=True)


def check_target(path: str | Path) -> Path:
    """Errors: InputError where a law cannot be written there, before the fit takes its time."""
    target = Path(path).expanduser()
    if target.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{str(path)[:80]!r} ends in neither .yaml nor .yml; name it like law.yaml")
    if not target.parent.is_dir():
        raise InputError(f"{str(path)[:80]!r}: there is no folder {target.parent}; make it first")
    return target


def write_law(law: Law, path: str | Path) -> None:
    """Errors: as `check_target`; InputError where the file cannot be written."""
    try:
        check_target(path).write_text(law_text(law), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None

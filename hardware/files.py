"""Reading a file that a user named: bounded, and whatever is wrong with it is one line."""

from pathlib import Path

from meshwright.hardware.errors import InputError

MAX_BYTES = 4 * 2**20  # the largest file anyone writes for us is a few hundred thousand


def read_text(path: Path, wanted: str) -> str:
    """The text of a file; `wanted` says what the file should be, such as 'a plan file'.

    Errors: InputError for no file, a folder, an empty or endless one, or one that is not UTF-8.
    """
    way_out = f"give the path of {wanted}"
    try:
        with path.open("rb") as file:  # not read_text: it may be a pipe, or never end
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise InputError(f"cannot read {path}: it is a folder; {way_out}") from None
    except (OSError, ValueError) as error:  # too long a name, no permission, a null byte
        reason = getattr(error, "strerror", None) or "not a path"
        raise InputError(f"cannot read {_short(path)}: {reason}; {way_out}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES:,} bytes; {way_out}")
    if not data.strip():
        raise InputError(f"{path} is empty; {way_out}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _short(path: Path) -> str:
    text = ascii(str(path))[1:-1]
    return text if len(text) <= 160 else f"...{text[-157:]}"

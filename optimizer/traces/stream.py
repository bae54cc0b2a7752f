"""Chrome and Perfetto JSON read piece by piece: one event in memory at a time, whatever the size of the file.

A file is an object with a list `traceEvents`, or that list alone. Up to 8 GiB of text are read, a single value may take
16 MiB.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.hardware.errors import InputError, shown

MOST_TEXT = 8 * 2**30
MOST_VALUE = 16 * 2**20
_PIECE = 2**18
_SPACE = " \t\r\n"
_END = re.compile(r"\s*[,:\]}]")  # what follows a value
WANTED = "a trace that torch.profiler or jax.profiler wrote (.json, .json.gz)"


class TraceError(InputError):
    """A trace that cannot be read, or does not hold what is asked of it."""


class TraceFile:
    """The events of a file, and in `header` what else stands in it once they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Events one by one. Errors: TraceError where the file is none, ends early or is broken."""
        with _opened(self.path) as file:
            text = _Text(self.path, file)
            first = text.peek()
            if first == "[":
                yield from self._listed(text)
            elif first == "{":
                yield from self._object(text)
            else:
                raise TraceError(f"{self.path} does not start as JSON does, with {{ or [; give {WANTED}")

    def _object(self, text: "_Text") -> Iterator[dict[str, Any]]:
        found = False
        text.take("{")
        while text.peek() != "}":
            key = text.value()
            text.take(":")
            if key == "traceEvents":
                if found:
                    raise TraceError(
                        f"{self.path} has two lists traceEvents: several ranks in one file; give one rank's"
                    )
                found = True
                yield from self._listed(text)
            else:
                self.header[str(key)] = text.value()
            if text.peek() == ",":
                text.take(",")
        if not found:
            keys = ", ".join(sorted(self.header)[:5]) or "none"
            raise TraceError(f"{self.path} has no traceEvents (its keys: {keys}); give {WANTED}")

    def _listed(self, text: "_Text") -> Iterator[dict[str, Any]]:
        if text.peek() != "[":
            raise TraceError(f"{self.path}: traceEvents is no list; give {WANTED}")
        text.take("[")
        while text.peek() != "]":
            event = text.value()
            if not isinstance(event, dict):
                raise TraceError(f"{self.path}: an event is {shown(event)}, not an object; give {WANTED}")
            yield event
            if text.peek() != "]":
                text.take(",")
        text.take("]")


class _Text:
    """A window that slides over the text of a file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, io.TextIOWrapper(file, encoding="utf-8")
        self._text, self._at, self._read = "", 0, 0
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is no space."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                raise TraceError(
                    f"{self.path} ends early, after {self._read:,} characters: the profiler was cut off, or the copy of the "
                    "file; write it again"
                )

    def take(self, wanted: str) -> None:
        """Step over a character. Errors: TraceError where another stands there."""
        if (found := self.peek()) != wanted:
            raise TraceError(
                f"{self.path} is no JSON: {wanted!r} is due and {found!r} stands there, {self._place()}; write it again"
            )
        self._at += 1

    def value(self) -> Any:
        """The next value whole."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # What is cut off at the window's end looks broken too: more text tells them apart.
                if len(self._text) - self._at > MOST_VALUE or not self._more():
                    raise TraceError(
                        f"{self.path} is no JSON or ends early: {error.msg}, {self._place()}; write it again"
                    ) from None
                continue
            except RecursionError:
                raise TraceError(
                    f"{self.path} is nested too deeply, {self._place()}; give {WANTED}"
                ) from None
            if not _END.match(self._text, end) and end - self._at < MOST_VALUE and self._more():
                continue  # a number may go on beyond the window
            self._at = end
            return value

    def _place(self) -> str:
        return f"near character {self._read - len(self._text) + self._at:,}"

    def _more(self) -> bool:
        """Read on; as much again as is kept, so that a long value is not tried too often."""
        kept = self._text[self._at :]
        try:
            piece = self._file.read(max(_PIECE, len(kept)))
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise TraceError(
                f"{self.path} is a broken or cut off gzip file; copy or write it again"
            ) from None
        except UnicodeDecodeError:
            raise TraceError(f"{self.path} is not UTF-8 text; give {WANTED}") from None
        except OSError as error:
            raise TraceError(f"cannot read {self.path}: {error.strerror}; give {WANTED}") from None
        self._read += len(piece)
        if self._read > MOST_TEXT:
            raise TraceError(
                f"{self.path} holds more than {MOST_TEXT:,} characters; profile fewer steps, or without Python stacks"
            )
        self._text, self._at = kept + piece, 0
        return bool(piece)


def _opened(path: Path) -> BinaryIO:
    try:
        with path.open("rb") as file:
            magic = file.read(2)
        if not magic:
            raise TraceError(f"{path} is empty; give {WANTED}")
        return gzip.open(path, "rb") if magic == b"\x1f\x8b" else path.open("rb")  # type: ignore[return-value]
    except (OSError, ValueError) as error:  # too long a name, no permission, a null byte
        reason = getattr(error, "strerror", None) or "not a path"
        raise TraceError(f"cannot read {ascii(str(path))[1:-1][:200]}: {reason}; give {WANTED}") from None

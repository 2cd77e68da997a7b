"""Text without what steers a terminal or is not seen: escape sequences, control characters, zero width. Pure."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours
    r"|\x1b[\]PX^_][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[ -/]{0,8}[0-~]?"
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m(?!\])"  # of a colour, whose first letter was lost
    r"|(?:\\x1b|\\0?33|\\e|\\u001b|\^\[)\[[\d;]{0,16}[mK]",  # the same, as a program printed its source
    re.IGNORECASE,
)
_UNSEEN = re.compile(
    "[\x01-\x07\x0e-\x1b\x7f\x80-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_BETWEEN = re.compile("[\x00\x0a-\x0d\x1c-\x1f\x85\u2028\u2029\ufffd]")
"""What may stand between two words, or within one: NUL ends a variable of an environment, a carriage return a line."""
MAX_GROWTH = 2
"""How much longer a line may be with its wide letters as plain ones: one letter can be eighteen."""
_BACKSPACE = "\b"


def readings(line: str) -> list[str]:
    """Return how a line can be read, the usual one first: more than one where a character may part words or not."""
    plain = line if line.isascii() else unicodedata.normalize("NFKC", line)
    text = _ESCAPES.sub("", plain if len(plain) <= MAX_GROWTH * len(line) else line)
    text = _UNSEEN.sub("", text)
    found = [_BETWEEN.sub(" ", text.replace(_BACKSPACE, ""))]
    if _BACKSPACE in text:
        found.append(_BETWEEN.sub(" ", _struck_over(text)))
    if _BETWEEN.search(text):
        found.append(_BETWEEN.sub("", text.replace(_BACKSPACE, "")))
    return found


def _struck_over(text: str) -> str:
    """The text as a terminal shows it, where a backspace takes back a letter."""
    shown: list[str] = []
    for letter in text:
        if letter != _BACKSPACE:
            shown.append(letter)
        elif shown:
            shown.pop()
    return "".join(shown)

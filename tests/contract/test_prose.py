"""Plain words: what people read names things by the field's words, and nobody has to read it twice.

CONTRIBUTING.md has the rules, with examples. Tests and recorded lines are not looked at.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = {
    r"\bwhom\b": "which rank, which user: name it",
    r"\b(he|him|his|she|her|hers)\b": "a rank, a file or an agent is it; a user is they, or say user again",
    r"\bbe (it|he|they)\b": "whether ... or not",
    r"\b(is|are|was|were) told of\b": "is shown, is counted, is paged",
    r"\btombstones?\b": "record of an ended rank",
    r"\bmake-believe\b": "simulated",
    r"\bwithout any right\b": "without capabilities, without rights",
    r"\bwho has which\b": "maps ... to ...",
    r"\b(utilize|utilise|leverage|in order to|as well as|prior to|subsequently|functionality)\b": "a shorter word",
    r"\b(very|simply|obviously|of course|please note)\b": "leave it out",
}
"""What is not written, as a regular expression, and what is instead."""
READ = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "deploy/**/*.md",
    "deploy/prometheus/sources/*.yml",
    "deploy/**/*.sh",
)
CODE = ("agent/**/*.py", "exporters/**/*.py", "grafana/*.py", "deploy/**/*.py", "scripts/*")
MAX_SENTENCE_WORDS = 55
"""Of a sentence in the pages that people start with."""
STARTED_WITH = ("README.md", "docs/install.md", "docs/jobs.md", "docs/prometheus.md", "docs/troubleshooting.md")


EXAMPLES = "\n## Words\n"
"""The heading in CONTRIBUTING.md below which words stand that are avoided."""


def texts(*patterns: str) -> list[Path]:
    """Files of these patterns."""
    found = (path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


@pytest.mark.parametrize("pattern", AVOIDED)
def test_plain_words(pattern: str) -> None:
    """No page, alert, help text, docstring, comment or log line has a word that is avoided."""
    avoided = re.compile(pattern, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in texts(*READ, *CODE)
        for number, line in enumerate(path.read_text().partition(EXAMPLES)[0].splitlines(), 1)
        if avoided.search(line)
    ]
    assert found == [], AVOIDED[pattern]


@pytest.mark.parametrize("name", STARTED_WITH)
def test_sentences_are_short(name: str) -> None:
    """No sentence of a page that people start with is longer than the bound."""
    text = re.sub(
        r"```.*?```|^ {4}.*$|^\|.*$|^#.*$|`[^`]*`", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    sentences = re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", text)
    assert [each for each in sentences if len(each.split()) > MAX_SENTENCE_WORDS] == []

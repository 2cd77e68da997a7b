"""Texts for people use the field's plain words.

CONTRIBUTING.md has the rules, with examples. Tests and recorded lines are not checked."""

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
"""Regular expressions of banned words, with the replacement."""
PLAIN = {
    r"\bso (many|much)\b": "a number of, at most MAX_..., this much",
    r"\bso long\b": "this long, after this time",
    r"\b(is|are|was|were|be) (told|asked)\b": "knows, is shown, is queried",
    r"(?-i:\b([Nn]o|[Ss]ome)body\b)": "no rank, no user, another user: name it",
    r"\bfor (want|lack) of\b": "without, by the OOM killer",
    r"\blately\b": "recently, or the time",
    r"\bg(ives?|ave) way\b": "is evicted, loses",
    r"\bof which\b": "a new sentence, or whose",
    r"\b(who has most|whoever)\b": "the user with the most, a user who",
    r"\btells? of\b": "shows, reports",
    r"\bsays what\b": "names, raises ... with",
    r"\banew\b": "again; restarts",
    r"\bby the words? of\b": "name the source: NCCL watchdog logs",
    r"\bgives back at its end\b": "is released when it ends",
    r"\bone too many\b": "the limit is reached",
    r"\bthat there are have\b": "current, existing",
    r"\bmissing source for an absent\b": "is not an error",
    r"\bnothing said why\b": "without a known cause",
    r"\brun nothing of\b": "has no process on",
    r"\bcause of its end\b": "if it stops",
    r"\bshow as they are\b": "appear without configuration",
    r"\bhardware well\b": "healthy",
    r"\bexact over any window\b": "counters, plus a counter of lost records",
    r"\bnot known of\b": "... unavailable: the reason",
    r"\bright counts for\b": "restart jobs after granting a right",
    r"\bleft with status\b": "exited with code",
}
"""More banned words, for PLAIN_TEXTS."""
PLAIN_TEXTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("install", "jobs", "security", "troubleshooting")),
    "deploy/systemd/*",
    "agent/**/*.py",
    "exporters/**/*.py",
)
READ = (
    "README.md", "CONTRIBUTING.md", "docs/*.md", "deploy/**/*.md", "deploy/prometheus/sources/*.yml", "deploy/**/*.sh",
)  # fmt: skip
CODE = ("agent/**/*.py", "exporters/**/*.py", "grafana/*.py", "deploy/**/*.py", "scripts/*")
MAX_SENTENCE_WORDS = 55
"""Limit of words in a sentence of the pages that people read first."""
STARTED_WITH = ("README.md", "docs/install.md", "docs/jobs.md", "docs/prometheus.md", "docs/troubleshooting.md")


EXAMPLES = "\n## Words\n"
"""Below this heading CONTRIBUTING.md has examples of banned words."""


def texts(*patterns: str) -> list[Path]:
    """Return the files that match these patterns."""
    files = (path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    return [path for path in files if path.is_file() and "__pycache__" not in path.parts]


def avoided_words(patterns: dict[str, str], *places: str) -> list[str]:
    """Return the places of banned words in these texts, with the replacements."""
    words = {re.compile(pattern, re.IGNORECASE): better for pattern, better in patterns.items()}
    hits = []
    for path in texts(*places):
        text = path.read_text().partition(EXAMPLES)[0]
        for pattern, better in words.items():
            for hit in pattern.finditer(text):
                line = text.count("\n", 0, hit.start()) + 1
                hits.append(f"{path.relative_to(ROOT)}:{line}: {hit[0]}: {better}")
    return hits


def test_plain_words() -> None:
    """No page, alert, help text, docstring, comment or log line has a banned word."""
    assert avoided_words(AVOIDED, *READ, *CODE) == []


def test_plainer_words() -> None:
    """No plain text has a word of the second list."""
    assert avoided_words(PLAIN, *PLAIN_TEXTS) == []


@pytest.mark.parametrize("name", STARTED_WITH)
def test_sentences_are_short(name: str) -> None:
    """No sentence of these pages is longer than the limit."""
    text = re.sub(
        r"```.*?```|^ {4}.*$|^\|.*$|^#.*$|`[^`]*`", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    sentences = re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", text)
    assert [sentence for sentence in sentences if len(sentence.split()) > MAX_SENTENCE_WORDS] == []

# ruff: noqa: INP001  # beside build.py, which imports it: no package
"""Manual pages and completions of the packages, from the programs' help and the example configuration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "Per-rank bandwidth, liveness and health of NCCL and RCCL jobs, for Prometheus"
COMMANDS = ("", "status", "job", "doctor", "evidence", "exclude", "explain", "healthy", "mark", "simulate")


def help_of(command: str) -> str:
    """Return the help of a command, 80 characters wide."""
    words = [sys.executable, "-m", "agent", *filter(None, [command]), "--help"]
    return _output(words, {"COLUMNS": "80"})


def rankwatch_1(version: str, date: str) -> str:
    """Return rankwatch(1): the help of each command."""
    sections = [(f"rankwatch {command}".strip().upper(), help_of(command)) for command in COMMANDS]
    return _page(
        ("RANKWATCH", f'1 "{date}" "rankwatch {version}"', f"rankwatch \\- {SUMMARY}"),
        sections,
        ".BR rankwatch.yml (5),\n.BR rankwatch-setup (8),\n/usr/share/doc/rankwatch",
    )


def rankwatch_yml_5(version: str, date: str) -> str:
    """Return rankwatch.yml(5): the example configuration, which explains every key."""
    example = (ROOT / "deploy" / "systemd" / "rankwatch.yml").read_text()
    title = ("RANKWATCH.YML", f'5 "{date}" "rankwatch {version}"', "rankwatch.yml \\- configuration of rankwatch")
    return _page(title, [("DESCRIPTION", example)], ".BR rankwatch (1)")


def rankwatch_setup_8(version: str, date: str) -> str:
    """Return rankwatch-setup(8): its help."""
    text = _output(["sh", str(Path(__file__).with_name("rankwatch-setup")), "--help"], {})
    title = (
        "RANKWATCH-SETUP",
        f'8 "{date}" "rankwatch {version}"',
        "rankwatch-setup \\- gives the rankwatch service its rights",
    )
    return _page(title, [("DESCRIPTION", text)], ".BR rankwatch (1)")


def bash_completion() -> str:
    """Return bash's completion: commands, and the options of each."""
    return "\n".join(
        [
            "_rankwatch() {",
            "    local words",
            "    COMPREPLY=()",
            "    case ${COMP_WORDS[1]} in",
            *(f"        {command}) words='{words}' ;;" for command, words in _words()),
            "    esac",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")',
            "}",
            "complete -o default -F _rankwatch rankwatch",
            "",
        ]
    )


def zsh_completion() -> str:
    """Return zsh's completion, which completes file names if no word fits."""
    return "\n".join(
        [
            "#compdef rankwatch",
            "case $words[2] in",
            *(f"    {command}) compadd -- {words} ;;" for command, words in _words()),
            "esac",
            "[[ $PREFIX == -* ]] || _files",
            "",
        ]
    )


def _words() -> list[tuple[str, str]]:
    names = {command: re.findall(r"--[a-z][a-z.-]*[a-z]", help_of(command)) for command in COMMANDS}
    options = {command: " ".join(sorted(set(words))) for command, words in names.items()}
    of_agent = options.pop("")
    return [*options.items(), ("*", f"{' '.join(options)} {of_agent}")]


def _output(command: list[str], variables: dict[str, str]) -> str:
    env = {**os.environ, **variables}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)  # noqa: S603  # ours
    return done.stdout


def _page(title: tuple[str, str, str], sections: list[tuple[str, str]], see_also: str) -> str:
    name, edition, summary = title
    lines = [f".TH {name} {edition}", ".SH NAME", summary]
    for heading, text in sections:
        lines += [f'.SH "{heading}"', ".nf", *(_line(line) for line in text.splitlines()), ".fi"]
    lines += [".SH FILES", "/etc/rankwatch/rankwatch.yml, /etc/default/rankwatch, /var/lib/rankwatch,"]
    lines += ["/usr/share/rankwatch", ".SH SEE ALSO", see_also]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped

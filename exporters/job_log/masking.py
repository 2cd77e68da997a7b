"""Masks possible secrets in a log line, and removes terminal escapes and invisible characters. Pure.

A secret has a known shape (``secret_shapes``) or a name before it, with any separator between name and value. The rest
of a line is masked from the first named value on, so the module need not know where the value ends. A value that looks
like a word and has no name is not masked. In doubt the module masks.
"""

from __future__ import annotations

import re
import unicodedata

from exporters.job_log.secret_shapes import MASKED, without_shapes

_BEFORE = (
    r"(?:api|app|access|account|private|secret|auth|encryption|signing|master|shared|license|ssh|rsa|gpg|aes|hmac|"
    r"service|subscription|admin|host|deploy|client|webhook|session|security|storage|refresh|bearer|personal|id|hub|hf|bot|csrf|wi-?fi|wpa|network)"
)
STRONG = (
    r"(?<!ht)(?<!ch)p(?:[a4@][s5$]{2})?w(?:[o0]r)?ds?|pswd?|pwrd|pass[ _-]?(?:phrase|code|key|word|wort)s?|"
    r"kennwort|passwort|contrase(?:n|ñ)a|mot[_ -]de[_ -]passe|senha|parola|has(?:l|ł)o|heslo|(?:s|ş)ifre|wachtwoord|"
    r"l(?:o|ö)senord|passord|adgangskode|salasana|пароль|密码|密碼|口令|パスワード|暗証番号|비밀번호|암호|secrets?|credentials?|creds?|(?:bind|root|admin|user|db|my)_?pw|identified\s{1,4}by|"
    rf"{_BEFORE}[ _.-]?(?:keys?|tokens?)|conn(?:ection)?[ _-]?str(?:ing)?|mnemonic|"
    r"(?:seed|recovery)[ _-](?:phrase|code)s?|"
    r"(?:[mt2]fa|otp|verification|security|auth|login|one-time|confirmation|backup|reset)[ _-]?codes?"
)
"""Names that only secrets have: every separator counts, even a space, and the value may have several words."""
WEAK = r"keys?|tokens?|auths?|session(?:[ _-]?id)?s?|signature|jwt|cookies?"
SHORT = r"pass|sessid|pw|pin|sig|sid|otp|totp|psk|dsn|sas"
"""Names that other things have, too: after them fewer separators count. A name of SHORT must be a separate word."""
_BOUNDARY = r"(?:(?<![^\W_])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"
_GLUED = r"(?<!com)(?<!by)(?<!sur)(?<!tres)(?<!over)pass(?=\s{0,4}[=:\"'])|sessid"
"""Short names that also count at the end of a longer name (SSHPASS)."""
SUFFIX = r"(?:[_-]?(?:value|val|str|text|hash|base|data|raw|plain|b64|base64|enc|new|old|confirm|env|\d{1,3}))?"
NAME = re.compile(
    rf"(?:(?P<strong>{STRONG})|(?P<weak>{WEAK}|{_BOUNDARY}(?:{SHORT})|{_GLUED})){SUFFIX}(?![^\W_])(?!_[a-z])",
    re.IGNORECASE,
)
QUOTE = r"(?:\\{0,6}[\"'`“”‘’«»]|&(?:quot|apos|\#34|\#39);|%2[27]|\\u002[27])"
_AROUND = r"\s{0,2}[\[(<][^\])>\"'=:]{0,48}[\])>]"
"""Text in brackets after a name: a user, a type, or a colour without its escape character."""
_END = rf"(?:{QUOTE}|[\])}}]|{_AROUND}){{0,4}}"
_IS = re.compile(
    rf"{_END}\s{{0,32}}(?::{{1,2}}=?|=>|->|→|={{1,3}}|≔|%3[ad]|\\u003[ad]|&\#(?:58|61);)\s{{0,32}}", re.IGNORECASE
)
_ANY = re.compile(
    rf"{_END}(?:\s{{0,32}}(?:\|{{1,2}}|│|┃|;|\.{{3,64}}|>)\s{{0,32}}|\s{{1,8}}[-–—~]{{1,3}}>?\s{{1,8}}|\t\s{{0,32}}|(?:\\[nrt]){{1,4}}|\s{{3,32}})"
)
_ITEM = re.compile(rf"{QUOTE}{{1,3}}\s{{0,8}}[,;]\s{{0,8}}")
VALUE_WORD = r"(?:value|val|content|default|text|data)"
_VALUE_KEY = re.compile(
    rf"{QUOTE}(?:(?:\s{{0,8}},\s{{0,8}}\"\w{{1,32}}\"\s{{0,8}}:\s{{0,8}}\"[^\"]{{0,64}}\"){{0,3}}\s{{0,8}}[,{{]?\s{{0,8}}|(?:\s{{1,8}}[\w:.-]{{1,32}}=\"[^\"]{{0,64}}\"){{1,4}}\s{{1,8}}){QUOTE}?"
    rf"{VALUE_WORD}{QUOTE}?\s{{0,8}}[:=]\s{{0,8}}",
    re.IGNORECASE,
)
_NEXT_VALUE = re.compile(rf"\s{{0,8}},\s{{0,8}}{VALUE_WORD}\s{{0,4}}[:=]\s{{0,8}}", re.IGNORECASE)
_TAG = re.compile(r"<[\w:.-]{0,63}$")
_NEXT_ELEMENT = re.compile(r"\s{0,8}</[\w:.-]{1,64}>\s{0,8}<[\w:. =\"'-]{1,64}>")
_CALL = re.compile(rf"\w{{0,16}}(?=\([bruf]{{0,2}}{QUOTE})", re.IGNORECASE)
_OPTION = re.compile(rf"{QUOTE}?\s{{1,8}}(?!-)")
_SPACE = re.compile(r"\s{1,2}(?:(?:is|was|to|as|set to)\s{1,4})?(?=(\S{1,64}))")
_SAID = re.compile(r"\s{1,2}(?:is|was|to|as|set to)\s{1,4}(?=(\S{1,64}))")
_PLAIN = re.compile(r"[^\W\d_]+(?:['/-][^\W\d_]+){0,4}[.,:;!?)\]]{0,3}|[\d.,:/%]+|[\W_]+")
"""A word, a number or punctuation: does not look like a secret."""
_LOGIN = re.compile(r"\b(?:login|user(?:name)?|machine)\s{1,4}\S{1,64}\s{1,8}$", re.IGNORECASE)
_FOR = re.compile(
    r"\s{1,4}(?:(?:for|of|on)\s[^:=]{1,64}|(?:is|was|set|given|used|entered|hash|value)(?:\s{1,4}(?:is|was|to))?\s{0,4})[:=]\s{1,8}",
    re.IGNORECASE,
)
_LOOSE = re.compile(r"(?!\.\w|\s{1,2}\w)[^\w\s]{0,4}\s{0,4}[^\w\s]{0,4}(?<!\w)(?=(\S{1,64}))")
_LISTED = re.compile(r"\s{0,4},\s{0,8}")
_IS_OPTION = re.compile(r"(?:^|[\s\"'])--?[\w-]*$")
_SINGLE = ("token", "auth", "pass")
_HARMLESS = re.compile(
    r"(?:none|null|nil|true|false|yes|no|undefined|''(?!')|\"\"(?!\")|\*{3,}|\[masked\]|<[a-z]{1,16}>|(?=[,;)\]}]))(?![\w./+=:@$-])"
    r"|(?:torch\.|tensor\b|<class|<function|/(?=\w))",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"[-+]?\d{1,3}(?![\w.:@$-])|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?[KMG]?\s{0,2}(?:ms|us|s|tokens?|keys?|%|/s)\b|\d+\.\d+(?![\w.])",
    re.IGNORECASE,
)
_COUNT = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?[KMG]?(?!\w)", re.IGNORECASE)
_OF_MODELS = re.compile(
    r"(?:missing|unexpected|query|q|k|kv|sort|dict|primary|foreign|cache|(?:pad|eos|bos|unk|mask|cls|sep)[_ ])[_ ]?$",
    re.IGNORECASE,
)
"""Words before ``key`` or ``token`` that name a part of a model or table, not a secret."""
_COUNTED = ("tokens", "keys")
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours
    r"|\x1b[\]PX^_][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[ -/]{0,8}[0-~]?"
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m(?!\])"  # a colour without its escape character
    r"|(?:\\x1b|\\0?33|\\e|\\u001b|\^\[)\[[\d;]{0,16}[mK]",  # a colour whose escape character is spelled out
    re.IGNORECASE,
)
_UNSEEN = re.compile(
    "[\x01-\x07\x0e-\x1b\x7f\x80-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_BETWEEN = re.compile("[\x00\x0a-\x0d\x1c-\x1f\x85\u2028\u2029\ufffd]")
"""Characters that may separate words or stand within a word. NUL ends an environment variable, CR a line."""
MAX_GROWTH = 2  # Limit of growth by NFKC normalization. One character can become eighteen.
_BACKSPACE = "\b"
_VALUE_FIRST = re.compile(
    rf"\b({VALUE_WORD}[\"']?\s{{0,8}}[:=]\s{{0,8}})(?:\"[^\"]{{0,512}}\"|'[^']{{0,512}}')"
    rf"(?=,?\s{{0,8}}[\"']?(?:name|key|env)[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"'][\w.-]{{0,64}}?(?:{STRONG}|{WEAK}|_pass){SUFFIX}[\"'])",
    re.IGNORECASE,
)
_OPEN_END = re.compile(
    rf"(?:{STRONG}|[ _-](?:key|token)){SUFFIX}{QUOTE}{{0,2}}\s{{0,8}}[:=]\s{{0,8}}[|>]?[-+]?\s{{0,8}}$", re.IGNORECASE
)
_BEFORE_NAMES = re.compile(r"\s{0,64}")
_REST_OF_KEY = re.compile(r"\s{0,64}[A-Za-z0-9+/=]{1,128}\s{0,64}")


def value_start(line: str, name: re.Match[str], *, strong: bool) -> int | None:
    """Return where the value of a name begins; None without a separator after the name."""
    end = name.end()
    if line[end : end + 1] in (">", " ", "/") and _TAG.search(line, max(0, name.start() - 64), name.start()):
        return end
    if (match := _NEXT_ELEMENT.match(line, end)) is not None:
        return match.end()
    patterns = [_IS, _VALUE_KEY, _ITEM]
    if line[max(0, name.start() - 1) : name.start()] in ("(", "["):
        patterns.append(_LISTED)
    if strong or name[0].lower().startswith("auth"):
        patterns.append(_CALL)
    if _IS_OPTION.search(line, max(0, name.start() - 40), name.start()):
        patterns.append(_OPTION)
    patterns.append(_SPACE if strong or name[0].lower().endswith(_SINGLE) else _SAID)
    if strong:
        patterns += [_NEXT_VALUE, _ANY, _FOR, *([] if line[: name.start()].endswith("/") else [_LOOSE])]
        if _LOGIN.search(line, max(0, name.start() - 96), name.start()):
            patterns.append(_OPTION)
    matches = (pattern.match(line, end) for pattern in patterns)
    starts = (
        match.end()
        for match in matches
        if match is not None and not (match.re in (_SPACE, _SAID, _LOOSE) and _PLAIN.fullmatch(match[1]))
    )
    return next(starts, None)


def is_harmless(line: str, name: re.Match[str], start: int, *, strong: bool) -> bool:
    """Return whether the value at ``start`` is no secret: empty, a placeholder, a tensor or a path.

    After a ``strong`` name, a path is harmless only for `pwd`. After a weak name, a number is harmless, too.
    """
    if start >= len(line) or line[start:].isspace() or _HARMLESS.match(line, start):
        return not (strong and line.startswith("/", start) and not name[0].lower().startswith("pwd"))
    if strong:
        return False
    if name[0].lower() in _COUNTED and _COUNT.match(line, start):
        return True
    return bool(_NUMBER.match(line, start) or _OF_MODELS.search(line, max(0, name.start() - 16), name.start()))


def masked(line: str, before: str = "") -> str:
    """Return ``line`` with MASKED in place of possible passwords, tokens and keys.

    Control characters and invisible characters are removed. ``before``: the masked previous line, which may end with
    the name of a secret or belong to the same key.
    """
    if _OPEN_END.search(before) and line.strip():
        return _BEFORE_NAMES.match(line)[0] + MASKED  # type: ignore[index]  # always matches, maybe an empty text
    if before.strip() == MASKED and _REST_OF_KEY.fullmatch(line):
        return MASKED
    shown = [(reading, _without_named(without_shapes(reading))) for reading in readings(line)]
    return max(shown, key=lambda reading: len(reading[0]) - len(reading[1].replace(MASKED, "")))[1]  # hides most


def _without_named(line: str) -> str:
    """Return the line up to the first named secret's value, and MASKED in place of the rest."""
    line = _VALUE_FIRST.sub(rf"\1{MASKED}", line)
    for name in NAME.finditer(line):
        strong = name["strong"] is not None
        start = value_start(line, name, strong=strong)
        if start is not None and not is_harmless(line, name, start, strong=strong):
            return line[:start] + MASKED
    return line


def readings(line: str) -> list[str]:
    """Return all readings of a line, the usual one first: some characters may or may not separate words."""
    plain = line if line.isascii() else unicodedata.normalize("NFKC", line)
    text = _ESCAPES.sub("", plain if len(plain) <= MAX_GROWTH * len(line) else line)
    text = _UNSEEN.sub("", text)
    variants = [_BETWEEN.sub(" ", text.replace(_BACKSPACE, ""))]
    if _BACKSPACE in text:
        variants.append(_BETWEEN.sub(" ", _struck_over(text)))
    if _BETWEEN.search(text):
        variants.append(_BETWEEN.sub("", text.replace(_BACKSPACE, "")))
    return variants


def _struck_over(text: str) -> str:
    """Return the text as a terminal shows it: a backspace deletes the character before it."""
    shown: list[str] = []
    for letter in text:
        if letter != _BACKSPACE:
            shown.append(letter)
        elif shown:
            shown.pop()
    return "".join(shown)

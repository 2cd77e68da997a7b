"""Names of secrets, and separators between name and value: signs, brackets, lists, XML elements, words. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

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
"""Names only of secrets: every separator counts, even a space, and the value may have several words."""
WEAK = r"keys?|tokens?|auths?|session(?:[ _-]?id)?s?|signature|jwt|cookies?"
SHORT = r"pass|sessid|pw|pin|sig|sid|otp|totp|psk|dsn|sas"
"""Names also of other things: an equals sign or a colon must follow. A short name must be a separate word."""
_BOUNDARY = r"(?:(?<![^\W_])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"
_GLUED = r"(?<!com)(?<!by)(?<!sur)(?<!tres)(?<!over)pass(?=\s{0,4}[=:\"'])|sessid"
"""Match at the end of a longer name (SSHPASS)."""
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
_NAMED = re.compile(
    rf"[\"']?(?:\s{{0,8}}[:=]\s{{0,8}}[\"']|>)[\w.-]{{0,64}}?(?:{STRONG}|{WEAK}|{SHORT}){SUFFIX}[\"'<]", re.IGNORECASE
)
_LISTED = re.compile(r"\s{0,4},\s{0,8}")
_IS_OPTION = re.compile(r"(?:^|[\s\"'])--?[\w-]*$")
_SINGLE = ("token", "auth", "pass")


class Separated(NamedTuple):
    """The start of a value. ``until``: the text that ends it, or empty."""

    start: int
    until: str = ""


def separated(line: str, name: re.Match[str], *, strong: bool) -> Separated | None:
    """Return where the value of a name begins; None without a separator after the name."""
    end = name.end()
    if name[0].lower() == "key" and _NAMED.match(line, end) is not None:
        return None  # another name follows
    begun = line.rfind("<", max(0, name.start() - 64), name.start())
    if (
        begun >= 0
        and re.fullmatch(r"[\w:.-]*", line[begun + 1 : name.start()])
        and line[end : end + 1] in (">", " ", "/")
    ):
        return Separated(end, "</")
    if (match := _NEXT_ELEMENT.match(line, end)) is not None:
        return Separated(match.end(), "<")
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
    return next((Separated(match.end()) for match in matches if match is not None and not _is_word_after(match)), None)


def _is_word_after(match: re.Match[str]) -> bool:
    return match.re in (_SPACE, _SAID, _LOOSE) and _PLAIN.fullmatch(match[1]) is not None

"""Masks secrets of a known shape: tokens of services, keys, passwords in addresses and in options of programs. Pure."""

from __future__ import annotations

import re

MASKED = "[masked]"
_MAKERS = (
    r"github_pat_|gl[a-z]{2,6}-|sk-|nvapi-|xox[a-z]-|xapp-|AIza|ya29\.|GOCSPX-|hv[sbr]\.|"
    r"dckr_[a-z]{2,4}_|pypi-|SG\.|lin_api_|dop_v1_|AGE-SECRET-KEY-|(?:[spr]k|whsec)_(?:live|test)_"
)
_ALNUM_MAKERS = r"hf_|gh[pousr]_|npm_|shp[a-z]{2}_|gsk_|r8_|dapi|whsec_|wandb_v1_"
"""Prefixes of tokens of well-known services. After a prefix in _ALNUM_MAKERS only letters and digits follow."""
_BASE64 = r"(?<![\w/+])(?=[a-z0-9+/]*\d)(?-i:(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z]))[a-z0-9+][a-z0-9+/]{39,}={0,2}"
"""Does not match paths: they begin with a slash, lack digits or capitals, or have other characters."""
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PROGRAM = (
    r"\b(?:sshpass|mysql\w*|mariadb\w*|docker|podman|helm|skopeo|crane|az|mongo\w*|redis-cli|ldap\w+|7z|zip|unzip|"
    r"plink|psftp|useradd|usermod|sudo|openssl|security)\b"
)
"""Programs with a one-letter option for a password."""
_GAP = r"[\s\"',=]{1,6}"
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"(-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE|SECRET|KEY|CERTIFICATE)[A-Z0-9 ]{0,20}-----).*", rf"\1{MASKED}"),
        (
            r"((?:authorization|cookie)\\{0,6}[\"']?(?:\s{0,32}(?::=|=>|->|={1,3}|:|%3[ad])\s{0,32}|,\s{0,8})).*",
            rf"\1{MASKED}",
        ),
        (r"(\b(?:digest|negotiate|ntlm|apikey|aws4-hmac-sha256)\s{1,8})(?=[^\s]{0,400}[\d=])\S{6,}.*", rf"\1{MASKED}"),
        (r"(\b(?-i:Bearer|BEARER|Basic|BASIC)\s{1,8}[\"']?)(?=[\w.~+/=-]{4})(?![a-z]+\s)[\w.~+/=-]+", rf"\1{MASKED}"),
        (r"(\b(?:bearer|basic)\s{1,8})[\w.~+/=-]{8,}", rf"\1{MASKED}"),
        (r"(://)[^\s\"'<>]{1,512}@", rf"\1{MASKED}@"),
        (rf"({_PROGRAM}.{{0,200}}?\s[\"']?-(?:[pPawk]|pw){_GAP})(?=[^\s\d/-])[^\s\"',]+", rf"\1{MASKED}"),
        (r"(\b(?:mysql\w*|mariadb\w*|sshpass|7z)\b.{0,200}?[\s\"']-p)[^\s\"',]+", rf"\1{MASKED}"),
        (r"(\bsmbclient\b.{0,100}?-U\s{0,4}[\"']?[^\s%]{1,64}%)[^\s\"']+", rf"\1{MASKED}"),
        (r"(\bssh-keygen\b.{0,200}?\s-[NP]\s{0,4})[^\s-]\S*", rf"\1{MASKED}"),
        (r"(\b(?:ipmitool|ipmi-\w+)\b.{0,200}?\s-P\s{0,4})\S+", rf"\1{MASKED}"),
        (r"(\bsnmp\w+\s.{0,200}?\s-[AX]\s{0,4})\S+(?:(.{0,200}?\s-[AX]\s{0,4})\S+)?", rf"\1{MASKED}\2{MASKED}"),
        (r"(\s/p(?:ass(?:word)?)?:)[^\s\"']+", rf"\1{MASKED}"),
        (r"(\b(?:kinit|sudo|passwd|cryptsetup|gpg|docker)\b.{0,100}?<<<\s{0,4}).+", rf"\1{MASKED}"),
        (
            r"(\b(?:wandb|huggingface-cli|hf|ngc)\s.{0,40}?login\s{1,4}(?:--relogin\s{1,4})?)[^\s-]\S{5,}",
            rf"\1{MASKED}",
        ),
        (r"(\bconvertto-securestring\s{1,4}(?:-string\s{1,4})?)[^\s$-]\S*", rf"\1{MASKED}"),
        (r"(\bexpect\b.{0,200}?\bsend\s{1,4}(?:--\s{1,4})?[\"'])[^\"'\\]+", rf"\1{MASKED}"),
        (r"(\bnet\s{1,4}use\s.{0,200}?\\\\\S{1,200}\s{1,4})[^\s/]\S*", rf"\1{MASKED}"),
        (r"(\b(?:sqlplus|rman|impdp|expdp)\s.{0,60}?\w{1,64}/)[^\s@/]+", rf"\1{MASKED}"),
        (
            r"(\becho\s).{0,200}?(\|\s{0,8}(?:sudo|chpasswd|passwd|docker|podman|helm|gh|cryptsetup|kinit|gpg)\b)",
            rf"\1{MASKED} \2",
        ),
        (
            r"([\s\"'](?:-u|-U|--user|--proxy-user|--creds|--auth)[\s=\"',]{0,8}[^\s:\"'%]{1,64}:)[^\s\"']+",
            rf"\1{MASKED}",
        ),
        (r"(?<![\w/:])(\w[\w.-]{0,63}:)(?!\d{1,9}@)[^\s@/:\"'<>]{3,64}@(?=[\w-]{1,64}\.[a-z0-9])", rf"\1{MASKED}@"),
        (r"(\b[\w.*-]{1,64}:(?:\d{2,5}|\*):[\w*-]{1,64}:[\w*-]{1,64}:)[^\s:]{3,}$", rf"\1{MASKED}"),  # .pgpass
        (r"(:thin:\w{1,64}/)[^\s@/]+", rf"\1{MASKED}"),
        (r"(--from-literal[\s=]{1,4}[\w.-]{1,64}=)\S+", rf"\1{MASKED}"),
        (r"(\bvault\s{1,4}(?:kv\s{1,4}put|write)\s{1,4}\S{1,128}\s).*", rf"\1{MASKED}"),
        (r"(\bhtpasswd\s{1,4}-\w{0,4}b\w{0,4}\s{1,4}\S{1,128}\s{1,4}\S{1,64}\s{1,4})\S+", rf"\1{MASKED}"),
        (r"\$(?:[1256y]|2[abxy]|apr1|argon2\w{1,2}|scrypt)\$[^\s:\"']{8,}", MASKED),  # crypt
        (r"\b\w{3}[0-9]Q~[\w.~-]{20,}", MASKED),  # Azure
        (r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", MASKED),  # JWT
        (r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b", MASKED),  # AWS
        (rf"\b(?:{_MAKERS})[\w.-]{{12,}}", MASKED),
        (rf"\b(?:{_ALNUM_MAKERS})[A-Za-z0-9]{{10,}}", MASKED),
        (r"((?:hooks\.slack\.com/(?:services|workflows)|/api/webhooks|/webhookb?2?)/)\S+", rf"\1{MASKED}"),
        (r"([?&](?:code|state|sv|se|sig|auth|x-amz-[a-z]{1,20}|x-goog-[a-z]{1,20})=)[^\s&\"']+", rf"\1{MASKED}"),
        (r"\b\d{8,10}:[\w-]{30,}", MASKED),  # Telegram
        (r"(?<![\w/+=])[A-Za-z0-9/+=]{40}(?![\w/+=])", MASKED),  # AWS, without a name
        (_BASE64, MASKED),
        (r"(?<![\w-])[0-9a-f]{32,}(?![\w-])", MASKED),
        (
            rf"(?<![\w=+-])(?!(?:GPU-|MIG-)?{_UUID}(?![\w-])|_Z|(?-i:[a-z]+(?:[_-][a-z0-9]+)+)(?![\w=+-]))[A-Za-z0-9+=_-]{{40,}}",
            MASKED,
        ),
    )
)
_WHOLE = re.compile(r"\s*(?:[A-Za-z0-9+/=_-]{40,}|[A-Za-z0-9+/]{8,}={1,2})\s*")  # For example a line of a PEM key
_TOKEN = re.compile(r"(?<![\w+/.~=-])(?!_Z)[\w+~-]{16,512}={0,2}(?![\w/])")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_MIXED = re.compile(r"(?=[A-Z0-9]{0,32}[a-z])(?=[a-z0-9]{0,32}[A-Z])(?=[A-Za-z]{0,32}[0-9])[A-Za-z0-9]{3,}")
"""A part of a token between hyphens, with capitals, small letters and digits."""
_HEX = re.compile(r"(?:0x)?(?:[0-9a-f]{1,31}|[0-9A-F]{1,31})")  # Hashes of communicators and commits: no secrets
_GROUP = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_RANDOM_SHARE = 0.33
"""Minimum of changes between capitals, small letters and digits per character: random text has 0.6, CamelCase 0.2."""


_MIXED_LETTERS, _MIXED_WORD = 20, 3.5
"""For a run with capitals, small letters and digits: minimum length, and maximum mean length of small-letter groups."""


def without_shapes(line: str) -> str:
    """Return the line with MASKED in place of secrets with a known shape."""
    if _WHOLE.fullmatch(line):
        return MASKED
    for shape, replacement in _SHAPES:
        line = shape.sub(replacement, line)
    return _TOKEN.sub(_if_random, line)


def _if_random(token: re.Match[str]) -> str:
    is_random = any(map(_is_random, _RUN.findall(token[0]))) or len(_MIXED.findall(token[0])) >= 3
    return MASKED if is_random else token[0]


def _is_random(run: str) -> bool:
    """Return whether a run of letters and digits looks random: no word, number, CamelCase name or mangled symbol."""
    if _HEX.fullmatch(run):
        return False
    groups = _GROUP.findall(run)
    digits = sum(group.isdigit() for group in groups)
    if digits >= 2 and len(groups) - 1 >= _RANDOM_SHARE * len(run):
        return True
    words = [len(group) for group in groups if group.islower()]
    is_mixed = bool(words) and any(group.isupper() for group in groups) and len(run) >= _MIXED_LETTERS
    return is_mixed and digits >= 2 and sum(words) <= _MIXED_WORD * len(words)

"""The names that tell of a secret, as regular expressions: of secrets alone, and of other things as well. Pure."""

from __future__ import annotations

import re

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
"""Names of secrets and of nothing else: every separator counts, a space too, and the value may have several words."""
WEAK = r"keys?|tokens?|auths?|session(?:[ _-]?id)?s?|signature|jwt|cookies?"
SHORT = r"pass|sessid|pw|pin|sig|sid|otp|totp|psk|dsn|sas"
"""Names of other things as well: an equals sign or a colon must follow. The short ones are words of their own."""
_BOUNDARY = r"(?:(?<![^\W_])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"
_GLUED = r"(?<!com)(?<!by)(?<!sur)(?<!tres)(?<!over)pass(?=\s{0,4}[=:\"'])|sessid"
"""At the end of a longer name (SSHPASS)."""
SUFFIX = r"(?:[_-]?(?:value|val|str|text|hash|base|data|raw|plain|b64|base64|enc|new|old|confirm|env|\d{1,3}))?"
NAME = re.compile(
    rf"(?:(?P<strong>{STRONG})|(?P<weak>{WEAK}|{_BOUNDARY}(?:{SHORT})|{_GLUED})){SUFFIX}(?![^\W_])(?!_[a-z])",
    re.IGNORECASE,
)
QUOTE = r"(?:\\{0,6}[\"'`“”‘’«»]|&(?:quot|apos|\#34|\#39);|%2[27]|\\u002[27])"

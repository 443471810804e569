"""What must not be told: the one engine that finds secrets in messages, texts and fields.

Two things give a secret away. **A name** says what its value is: ``password``, ``apiKey``,
``AccountKey=``. **A format** does, whatever the name: keys that begin with the name of whoever gave
them, signed tokens, private keys, URLs with a password or whose path is the secret. Messages,
fields, keys, logs and dead letters all ask here, so that they cannot disagree.

Messages are written by programs, about something that went wrong: there a query string or a word
after "token" is left out on suspicion. Texts in fields are written by people, and lose only what
surely is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

# ---- names --------------------------------------------------------------------------------------

SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "apikey"),
    *("accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey", "credential"),
    *("authorization", "cookie", "bearer", "cvv", "cvc"),
)
"""What a secret's name ends with, its words written together in lower case; plurals as well."""

SECRET_NAMES = frozenset({"auth", "pin", "otp", "sig", "sessionid", "jwt", "accesskeyid"})
"""Names that are too short, or too common in others, to be looked for at an end."""

PRIVATE_ENDINGS = (
    *("accountkey", "subscriptionkey", "masterkey", "storagekey", "functionkey", "servicekey"),
    *("webhookkey", "integrationkey", "licensekey", "hmackey", "sharedkey", "deploykey"),
    *("signature", "connectionstring", "connstring", "dsn", "webhookurl", "webhookuri"),
    *("cardnumber", "cardno", "securitycode", "pincode", "seedphrase", "mnemonic", "backupcode"),
)
"""The same, for what is not told to anybody, but tells two requests apart."""

PRIVATE_NAMES = frozenset({"pass", "pat", "sas", "ssn", "xapikey", "hmac", "kubeconfig", "netrc"})

_PASS_OF = frozenset(
    {"db", "database", "user", "smtp", "imap", "mail", "mysql", "pg", "postgres", "redis", "admin"}
    | {"root", "login", "auth", "http", "proxy", "ftp", "sftp", "ssh", "ldap", "basic", "service"}
)
"""Before ``pass``: whose password it is. A boarding pass is none."""

TRAILING_WORDS = frozenset(
    {"value", "values", "text", "string", "raw", "plain", "hash", "header", "encoded", "encrypted"}
    | {"old", "new", "current", "confirm", "confirmation", "repeat", "again", "base64", "b64"}
)
"""What may follow in a name without making another thing of it; numbers may as well."""

READING_WORDS = frozenset(
    {"page", "nextpage", "next", "continuation", "pagination", "sync", "cancel", "cursor"}
    | {"start", "end"}
)
"""Before ``token``: where to go on reading. Without them two requests would look like one."""

COUNTING_WORDS = frozenset(
    {"max", "min", "total", "prompt", "completion", "input", "output", "num", "cached", "reasoning"}
)
"""Before ``tokens``: how many a text has or may have."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NOT_A_LETTER = re.compile(r"[^a-z0-9]")


def normalised_name(name: str) -> str:
    """A name in lower case, its words written together."""
    return _NOT_A_LETTER.sub("", name.lower())


@lru_cache(maxsize=4096)
def is_secret(name: str, more: frozenset[str] = frozenset()) -> bool:
    """Whether a name says that its value is not to be told; ``more`` are names of your own."""
    if is_credential(name, more):
        return True
    words = _meaning(name)
    if not words:
        return False
    whole = "".join(words)
    if words[-1] == "pass" and len(words) > 1:
        return words[-2] in _PASS_OF
    if words[-1] == "string":  # "connection string": not the string of something, as elsewhere
        whole = normalised_name(name)
    return whole in PRIVATE_NAMES or whole.removesuffix("s").endswith(PRIVATE_ENDINGS)


@lru_cache(maxsize=4096)
def is_credential(name: str, more: frozenset[str] = frozenset()) -> bool:
    """Whether a name says that its value only lets somebody in, and is no part of a request."""
    words = _meaning(name)
    whole = "".join(words)
    if normalised_name(name) in more or whole in SECRET_NAMES:
        return True
    return whole.removesuffix("s").endswith(SECRET_ENDINGS) and not _is_plain_token(words)


def _meaning(name: str) -> list[str]:
    words = [each.lower() for each in _WORDS.findall(name)]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in TRAILING_WORDS):
        if words[-2:] in (["connection", "string"], ["conn", "string"]):
            break
        words.pop()
    return words


def _is_plain_token(words: list[str]) -> bool:
    last = words[-1]
    before = words[-2] if last in {"token", "tokens"} and len(words) > 1 else None
    if before is None:  # written together, perhaps
        before = last.removesuffix("s").removesuffix("token")
    return before in READING_WORDS or (before in COUNTING_WORDS and last.endswith("s"))


# ---- formats ------------------------------------------------------------------------------------

_Mask = tuple[str, str, re.RegexFlag, str]
"""A mark, the pattern of what is left out with its flags, and what stands in its place."""


def _mask(mark: str, pattern: str, replacement: str, flags: re.RegexFlag = re.IGNORECASE) -> _Mask:
    return mark, pattern, flags, replacement


@cache
def _compiled(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Compiled when something has its mark: all of them together take longer than most imports."""
    return re.compile(pattern, flags)


def _keys(prefixes: Iterable[str], rest: str) -> Iterable[_Mask]:
    """Keys that begin with the name of whoever gave them: that much is told."""
    for prefix in prefixes:
        pattern = rf"(?<![A-Za-z0-9])({re.escape(prefix)}){rest}"
        yield _mask(prefix.lower(), pattern, r"\1***", re.RegexFlag(0))


_UNDERSCORED = (
    *("whsec_", "rzp_live_", "rzp_test_"),
    *("github_pat_", "glsa_", "glc_"),
    *("shpat_", "shpca_", "shppa_", "shpss_", "dop_v1_", "doo_v1_", "dor_v1_", "dckr_pat_"),
    *("lin_api_", "sntrys_", "sntryu_", "rubygems_", "CCIPAT_", "lsv2_pt_", "lsv2_sk_"),
    *("pscale_tkn_", "pscale_pw_", "pscale_oauth_", "duffel_live_", "duffel_test_"),
)
_SHORT = (  # these begin like names of other things, too: a tail without a break is what counts
    *("npm_", "hf_", "gsk_", "r8_", "ntn_", "sbp_", "figd_", "bkua_", "sgp_", "tfp_", "EZAK"),
    *("EZTK", "ops_"),
)
_DASHED = (
    *("sk-ant-", "sk-proj-", "sk-or-", "glpat-", "gldt-", "glrt-", "glptt-"),
    *("glsoat-", "glcbt-", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxe-", "xoxo-", "xapp-"),
    *("GOCSPX-", "PMAK-", "HRKU-", "NRAK-", "NRII-", "NRJS-", "sq0atp-", "sq0csp-", "xkeysib-"),
    *("tskey-", "pul-", "pplx-", "xai-", "pypi-AgEI", "ATATT3", "ATCTT3", "FlyV1 ", "tok-live-"),
)
_DOTTED = ("ya29.", "hvs.", "hvb.", "hvr.", "dp.pt.", "dp.st.", "dt0c01.", "1//0")
_BARE: tuple[_Mask, ...] = (
    # a signed or sealed token, and a key as a file has it
    _mask("eyj", r"\beyJ[\w-]{5,}(?:\.[\w-]*){1,4}", "***"),
    _mask(
        "private key", r"(?s)-----BEGIN [\w ]{0,40}PRIVATE KEY.*?(?:-----END[^-]*-----|\Z)", "***"
    ),
    _mask("private-lines", r"(?s)(Private-Lines: \d{1,4})\s.*?(?:Private-MAC|\Z)", r"\1 ***"),
    _mask("age-secret-key-", r"(AGE-SECRET-KEY-1)[A-Z0-9]{20,}", r"\1***"),
    # URLs whose path is the secret
    _mask("hooks.slack.com/", r"(hooks\.slack\.com/\w{1,20}/)[\w/+-]{8,}", r"\1***"),
    _mask(
        "/webhooks/",
        r"(discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{5,})/[\w-]{8,}",
        r"\1/***",
    ),
    _mask("webhook.office.com/", r"(webhook\.office\.com/)[\w@/%.-]{8,}", r"\1***"),
    _mask("api.telegram.org/", r"(api\.telegram\.org/(?:file/)?bot)\d{5,}:[\w-]{8,}", r"\1***"),
    _mask(":aa", r"\b\d{8,10}:AA[\w-]{32,}", "***"),
    _mask("hooks.zapier.com/", r"(hooks\.zapier\.com/hooks/\w{1,20}/)[\w/]{8,}", r"\1***"),
    # those that have no mark of their own but a shape
    _mask("a", r"\b((?:AKIA|ASIA|ABIA|ACCA))[A-Z0-9]{16}\b", r"\1***", re.RegexFlag(0)),
    _mask("ltai", r"\b(LTAI)[A-Za-z0-9]{12,30}\b", r"\1***", re.RegexFlag(0)),
    _mask("aiza", r"\b(AIza)[\w-]{30,}", r"\1***"),
    _mask("sg.", r"\b(SG\.)[\w-]{16,32}\.[\w-]{16,64}", r"\1***", re.RegexFlag(0)),
    _mask("key-", r"\b(key-)[0-9a-f]{32}\b", r"\1***", re.RegexFlag(0)),
    _mask("dapi", r"\b(dapi)[0-9a-f]{32}", r"\1***", re.RegexFlag(0)),
    _mask("sk", r"\b(SK)[0-9a-f]{32}\b", r"\1***", re.RegexFlag(0)),
    _mask(".atlasv1.", r"\b[A-Za-z0-9]{10,20}(\.atlasv1\.)[\w=-]{40,}", r"***\1***"),
    _mask("pat", r"\b(pat)[A-Za-z0-9]{14}\.[0-9a-f]{40,}", r"\1***", re.RegexFlag(0)),
    _mask("q~", r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~-]{31,36}", "***", re.RegexFlag(0)),
    _mask("eaa", r"\b(EAA)[A-Za-z0-9]{60,}", r"\1***", re.RegexFlag(0)),
    *_keys(_UNDERSCORED, r"[A-Za-z0-9_]{12,}"),
    *_keys(_SHORT, r"[A-Za-z0-9]{20,}"),
    *_keys(("sk-", "sk_", "rk_", "rk-"), r"(?=[\w-]{0,60}\d)[\w-]{12,}"),
    *_keys(_DASHED, r"[\w-]{12,}"),
    *_keys(_DOTTED, r"[\w.-]{16,}"),
    _mask("gh", r"(?<![A-Za-z0-9])(gh[a-z]_)[A-Za-z0-9_]{12,}", r"\1***", re.RegexFlag(0)),
)
"""What is a secret without anybody saying so."""

# ---- names in texts -----------------------------------------------------------------------------

# Quoted, the quotes of a quoted text included, it goes on to the closing one or to the end.
QUOTED = (
    r"(?:b?\"(?:\\.|[^\"\\])*(?:\"|\\?\Z)|b?'(?:\\.|[^'\\])*(?:'|\\?\Z)"
    r"|\\\"[^\"]*\"?|\\'[^']*'?)"
)
# Not a secret, but where one stands, as settings say it; or a word that stands for one in advice.
_ELSEWHERE = r"(?!b?\\?['\"]?(?:env|file):|<)"
_PLACEHOLDER = r"(?!user:password@|[^/\s:@?#]{0,100}:\*{3}@)"
_NAME = r"(?!pass_secrets\b)([\w.-]{1,60})"
_ASSIGNED = (
    rf"(?<![\w.-]){_NAME}(\]?\\?['\"]?\s{{0,3}}=\s{{0,3}}){_ELSEWHERE}(?:\*{{3}}|{QUOTED}|[^\s&;]+)"
)
"""As in URLs, forms and the like: up to the next parameter."""
_SAID = (
    rf"(?m)(?:(?<=['\"])|^[ \t-]{{0,40}}){_NAME}(\\?['\"]?\s{{0,3}}:\s{{0,3}}){_ELSEWHERE}"
    rf"(?:\*{{3}}|{QUOTED}|\S+)"
)
"""As in headers, YAML and JSON; elsewhere a colon says nothing: "our secret: good bread"."""
_TOLD = (
    rf"(?<![\w.-]){_NAME}(\\?['\"]?\s{{0,3}}:\s{{0,3}}){_ELSEWHERE}(?:\*{{3}}|{QUOTED}|[^\s,;&]+)"
)
"""The same anywhere in a message, for names of several words: ``x-subscription-key: …``."""
_SAS = _mask(
    "sharedaccesssignature",
    r"\b(SharedAccessSignature[= ])(?:sr=)?\S+",
    r"\1***",
)

_COMMON_NAMES = (
    r"(?:api|access|private|signing|encryption)[ _-]?keys?|credentials?|cookies?|signature"
    r"|[\w-]{0,40}(?:token|secret|password|passwd|passphrase|pwd)s?"
)
_COUNTED = "|".join(sorted(COUNTING_WORDS))
_NAMED = (
    rf"(?!(?:{_COUNTED})_?tokens\b|pass_secrets\b)({_COMMON_NAMES})"
    r"(\d{0,9}(?:[_-](?:value|text|hash|\d{1,9}))?\\?['\"]?\s{0,3}"
)
_VALUE = rf"{_ELSEWHERE}(?:{QUOTED}|\S+)"
_HEADER = r"\b((?:proxy-)?authorization)(?!: Bearer <)(\\?['\"]?\s{0,3}[:=]\s{0,3})"
_REST = r"(?:b?\\?\"[^\"]*\"?|b?\\?'[^']*'?|[^\r\n]+)"
# A password may hold a slash, unless it is the one behind a port.
_SLASHED = _mask(
    "@", rf"(\w://){_PLACEHOLDER}[^/\s:@?#]{{0,100}}:(?!\d{{1,5}}[/?#])[^\s@]{{1,300}}@", r"\1***@"
)
_AUTHORIZATION = _mask("authorization", _HEADER + _REST, r"\1\2***")
_OPAQUE = r"(?=\S*\d)(?=\S*[a-z])\S{6,}|[\w+/=.~-]{24,}"  # no word, and no count

_IN_MESSAGES: tuple[_Mask, ...] = (
    # user:password@ in a URL: up to the last @ before the path, as a password may hold one
    _mask("@", rf"(\w://){_PLACEHOLDER}[^/\s]*@", r"\1***@"),
    _SLASHED,
    _SAS,
    # query strings and fragments, of whole URLs and of paths alone
    _mask("?", r"(?<=[^\s(\[,])\?\S+", "?***"),
    _mask("#", r"(?<=\S)#[^\s=#]*=\S*", "#***"),
    _AUTHORIZATION,
    _mask("bearer ", r"\b(bearer) (?!<)\S+", r"\1 ***"),
    _mask("basic ", r"\b(basic) [\w+/=-]{6,}", r"\1 ***"),
    _mask("=", rf"\b{_NAMED}=\s{{0,3}}){_VALUE}", r"\1\2***"),
    _mask(":", rf"\b{_NAMED}:\s{{0,3}}){_VALUE}", r"\1\2***"),
    # one that is said in a sentence: token XYZ was rejected
    *(
        _mask(f"{word} ", rf"\b({word}) (?:{_OPAQUE})", r"\1 ***")
        for word in ("token", "secret", "password", "passphrase", "api key", "access key")
    ),
    *_BARE,
)
"""What each secret looks like; without its mark there is none, and nothing to search for."""

_CREDENTIALS: tuple[_Mask, ...] = (
    _mask("@", rf"(\w://){_PLACEHOLDER}[^/\s:@?#]*:[^/\s]*@", r"\1***@"),
    _SLASHED,
    _AUTHORIZATION,
    _mask("bearer ", r"^(\s*bearer) \S{6,}|\b(bearer) (?=\S*\d)\S{6,}", r"\1\2 ***"),
    _mask("basic ", r"^(\s*basic) \S{6,}|\b(basic) (?=\S*\d)[\w+/=-]{6,}", r"\1\2 ***"),
)
_IN_TEXTS = (*_CREDENTIALS, _SAS, *_BARE)


def redacted_message(text: str) -> str:
    """The message of an error, without what looks like a secret."""
    text = _applied(_IN_MESSAGES, text)
    return _without_named(text, frozenset(), _MESSAGE_NAMES)


def redacted_text(
    text: str, more: frozenset[str] = frozenset(), *, is_for_key: bool = False
) -> str:
    """A text of any length, as it is but for what is a secret by its form or its name.

    With ``is_for_key`` only credentials go: what is left still has to tell two requests apart.
    """
    veils = _CREDENTIALS if is_for_key else _IN_TEXTS
    return _without_named(_applied(veils, text), more, _TEXT_NAMES, is_for_key=is_for_key)


_TEXT_NAMES = (("=", _ASSIGNED), (":", _SAID))
_MESSAGE_NAMES = (("=", _ASSIGNED), (":", _SAID), (":", _TOLD))


def _without_named(
    text: str,
    more: frozenset[str],
    patterns: tuple[tuple[str, str], ...],
    *,
    is_for_key: bool = False,
) -> str:
    """A text without what it calls a secret itself."""
    is_left_out = is_credential if is_for_key else is_secret

    def mask(found: re.Match[str]) -> str:
        whole, name = found[0], found[1]
        if not is_left_out(name, more) or (
            found.re.pattern is _TOLD and len(_WORDS.findall(name)) < 2
        ):
            return whole
        return whole[: found.end(2) - found.start()] + "***"

    for mark, pattern in patterns:
        if mark in text:
            text = _compiled(pattern).sub(mask, text)
    return text


def _applied(veils: tuple[_Mask, ...], text: str) -> str:
    lowered = text.lower()
    for mark, pattern, flags, replacement in veils:
        if mark in lowered:
            text = _compiled(pattern, flags).sub(replacement, text)
    return text

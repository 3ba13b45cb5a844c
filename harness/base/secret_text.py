"""Secrets in what would be recorded or given away: found by the name of a setting, the look of a value, an address.

A value is never part of what is said here. What refers to a secret (``$TOKEN``, ``$(cat file)``) is none itself.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.setting_names import setting

WITHHELD = "(withheld: looks like a secret)"


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]")
_SWITCHED_OFF = frozenset({"no", "without", "disable", "skip"})
_SECRET_WORDS = _set_of(
    "pwd auth oauth authorization authorisation authentication cred creds bearer jwt cookie passcode passkey"
)
_SECRET_PARTS = ("secret", "passw", "passphrase", "credential", "apikey", "accesskey", "privatekey", "authtoken")
# What is before the word "key" where it opens something; --sort-key, --key-dim and --num-keys open nothing.
_KEY_OWNERS = _set_of(
    "access account anthropic api aws azure client comet deploy encryption gcp github gitlab google hf huggingface "
    "license master mlflow neptune openai private secret service session sign signing ssh ssl storage tls "
    "wandb"
)
# Words beside "token" where it is a piece of text, and beside "pass" where it is a walk through data or a filter.
_TEXT_WORDS = _set_of(
    "begin blank bos budget class cls count dim drop dropout embedding end eos first id ids image index last len "
    "length level limit loss mask max merging min mixer mixing next null num oov pad padding patch per position prefix "
    "pruning rate sep separator shift size sos special split start stop suffix text type unk vocab weight word"
)
_WALK_WORDS = _set_of(
    "all backward band count first forward high last low max min multi n num one per second single through two"
)
# A name that ends in one of these is about a secret: AuthType, password_length.
_ABOUT = _set_of("count enabled info len length method mode plugin policy required scheme size timeout type")
_PLAIN_NAMES = frozenset({"PWD", "OLDPWD"})  # every shell's working folder
_FILE = re.compile(r"\.(?:cc?|h|html|ipynb|js|json|md|py|sh|svg|toml|txt|ya?ml)$")  # turn_pass.py: 12
_QUERY_NAMES = frozenset({"code", "key", "sas", "sig", "signature", "x-amz-signature", "x-goog-signature"})
_LOGINS = frozenset({"anonymous", "git"})  # before the @ of an address without a password

_QUOTE = r"\\{0,3}[\"']?"
_SECRET_NAME = r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,100})"
_ASSIGNED = re.compile(rf"(?:{_SECRET_NAME}|-(?P<option>-?[A-Za-z][\w.-]{{0,100}})){_QUOTE}\s{{0,4}}[=:]\s{{0,4}}")
_OPTION = re.compile(r"(?<![\w-])-(?P<option>-?[A-Za-z][\w.-]{0,100})(?:\s{1,4}|\\{0,3}[\"'],\s{0,4})")
_VALUE = re.compile(rf"{_QUOTE}(?:(?:Bearer|Basic|Token)\s{{1,4}})?(?P<value>[^\s\"'\\,;&<>]{{1,200}}|<[^>]{{0,200}}>)")
_NO_VALUE = re.compile(
    r"true|false|yes|no|on|off|none|null|nil|undefined|unset|required|\*+|x{3,}|<.*>|\(withheld:?|[{(\[]+[\d.]*|"
    r"\$[A-Za-z_]\w*|\$[{(].*|\{\{.*|`.*|%\w+%",
    re.IGNORECASE,
)
_OF_ADDRESS = re.compile(
    r"(?<![\w+.-])(?P<scheme>[a-z][a-z0-9+.-]{0,20})://"
    r"(?:(?P<user>[^\s/:@?#\[\"']{0,200}):(?!\d{1,5}(?:[/?#\s]|$))(?P<password>[^\s@\"'<>]{1,200})@"
    r"|(?P<login>[^\s/:@?#\"'<>]{1,200})@)",
    re.IGNORECASE,
)
_QUERY = re.compile(r"(?P<before>[?&;])(?P<name>[A-Za-z][\w.-]{0,60})=(?P<value>[^\s&#\"'<>]{1,200})")
# How the values of well-known services begin.
_VALUES = {
    "hf_": r"hf_[A-Za-z0-9]{16,}",
    "ghp_": r"gh[pousr]_[A-Za-z0-9]{16,}",
    "github_pat_": r"github_pat_\w{16,}",
    "glpat-": r"glpat-[\w-]{12,}",
    "sk-": r"sk-[A-Za-z0-9_-]{16,}",
    "AKIA": r"A(?:KI|SI)A[A-Z0-9]{12,}",
    "xox": r"xox[abeoprs]-[\w-]{10,}",
    "AIza": r"AIza[\w-]{30,}",
    "JWT": r"eyJ[\w-]{8,}\.[\w-]{8,}",
}
_BY_VALUE = re.compile(
    "|".join(rf"(?<![A-Za-z0-9_])(?P<v{number}>{form})" for number, form in enumerate(_VALUES.values()))
    + r"|(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY)"
)
_SHORT_VALUE = re.compile(r"(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abeoprs]-|eyJ)\w", re.ASCII)
# Every line with a secret has one of these: most lines of a log have none, and are passed by quickly.
_HINT = re.compile(
    r"pass|pwd|secret|cred|token|key|auth|bearer|jwt|cookie|://|PRIVATE|"
    r"hf_|gh[pousr]_|github_pat_|glpat-|sk-|AKIA|ASIA|xox|AIza|eyJ|[?&;](?:code|sas|sig)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """What looks like a secret in a line of a text, from 1: the `name` it goes by, never its value."""

    line: int
    name: str


def is_secret_name(name: str) -> bool:
    """Return whether what is called `name` (``--db-password``, ``apiKey``, ``HF_TOKEN``) is a secret by its meaning."""
    if name in _PLAIN_NAMES or _FILE.search(name):
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[0] in _SWITCHED_OFF or words[-1] in _ABOUT:
        return False
    neighbours = set(words)
    if neighbours & _SECRET_WORDS or any(part in word for word in words for part in _SECRET_PARTS):
        return True
    if any(owner in _KEY_OWNERS and word in ("key", "keys") for owner, word in itertools.pairwise(words)):
        return True
    if "pass" in neighbours and not neighbours & _WALK_WORDS:
        return True
    return any(word.endswith("token") for word in words) and not neighbours & _TEXT_WORDS


def secrets_in_text(text: str) -> Iterator[Secret]:
    """Yield what looks like a secret in `text`, line by line."""
    for number, line in enumerate(text.split("\n"), 1):
        if _HINT.search(line):
            for name in dict.fromkeys(_names(line)):
                yield Secret(line=number, name=name)


def secrets_in_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the name of everything in the `arguments` of a program that looks like a secret.

    An option that is secret by its name is one whatever follows it, but for a switch (``true``) and a reference.
    """
    words = list(arguments)
    for word, following in itertools.pairwise([*words, ""]):
        yield from _names(word)
        if "=" in word or not word.startswith("-"):
            continue
        if _opens(word) and not _NO_VALUE.fullmatch(following):
            yield word
        if word == "-p" and not _NUMBER.fullmatch(following):  # a password in many programs
            yield word


def refuse_secrets(arguments: Iterable[str], allowed: Iterable[str] = ()) -> None:
    """Refuse arguments of a script that look like secrets, but for those of the names `allowed`.

    Raises:
        UserError: naming the argument, not its value.
    """
    allowed_names = {name.lstrip("-") for name in allowed}
    for name in secrets_in_arguments(arguments):
        if name.lstrip("-") not in allowed_names:
            raise UserError(
                f"a script argument ('{name}') looks like a secret, and arguments stand in records and reports: let "
                f"the script read it from the environment or from a file, or say {setting('allow_argument')} "
                f"{shlex.quote(name.lstrip('-'))} if it is none"
            )


def _names(line: str) -> Iterator[str]:
    """Yield the names of what looks like a secret in one line."""
    for match in _BY_VALUE.finditer(line):
        group = match.lastgroup or ""
        yield "private key" if group == "pem" else list(_VALUES)[int(group[1:])]
    for assignment in _ASSIGNED.finditer(line):
        name = assignment["name"] or f"-{assignment['option']}"
        if name == "pass" and "=" not in assignment[0]:  # a heading: the forward pass: 3 ms
            continue
        value = _value_at(line, assignment.end())
        has_key = "key" in (word.lower() for word in _WORD.findall(name))
        if value and (_opens(name) or (has_key and _SHORT_VALUE.match(value))):
            yield name
    for option in _OPTION.finditer(line):
        value = _value_at(line, option.end())
        if value and not value.startswith("-") and _opens(option["option"]):
            yield f"-{option['option']}"
    yield from _names_in_addresses(line)


def _names_in_addresses(line: str) -> Iterator[str]:
    if "://" not in line:
        return
    for address in _OF_ADDRESS.finditer(line):
        if address["password"] and not _NO_VALUE.fullmatch(address["password"]):
            yield "address with a password"
        login = address["login"]
        is_web = address["scheme"].lower() in ("http", "https", "git+https")
        if login and is_web and login not in _LOGINS and not _NO_VALUE.fullmatch(login):
            yield "address with a user"
    for field in _QUERY.finditer(line):
        name = field["name"]
        if (name.lower() in _QUERY_NAMES or _opens(name)) and not _NO_VALUE.fullmatch(field["value"]):
            yield f"{field['before']}{name}"


def _value_at(line: str, begin: int) -> str:
    """Return the value that stands in `line` at `begin`; empty where there is none or it only refers to one."""
    match = _VALUE.match(line, begin)
    if match is None or _NO_VALUE.fullmatch(match["value"]):
        return ""
    return match["value"]


def _opens(name: str) -> bool:
    """Return whether a name with its parts (``db.password``) is that of a secret."""
    return is_secret_name(name.lstrip("-"))

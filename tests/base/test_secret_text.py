"""What is a secret by its meaning is found in arguments and in texts; what only sounds alike is none."""

import time

import pytest

from harness.base.secret_text import is_secret_name, secrets_in_arguments, secrets_in_text

HIDDEN = "hunter2hunter2hunter2hunter2hunter2"
# A token of no service: made here, so that no scanner takes this file for a leak.
ACCOUNT = "AKIA" + 4 * "ABCD"
JSON_TOKEN = "eyJ" + "hbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxIn0" + ".abc"

# Each is one use: the words of a command line. The first 41 are those of an outside review.
SECRETS = [
    "--db-pass=hunter2",
    "--pass",
    "-p",
    "--pwd=x",
    "--auth=x",
    "--authorization=Bearer x",
    "--aws-secret-access-key=AKIA",
    "--aws-access-key-id=x",
    "--access-key=x",
    "--secret-key=x",
    "--secret_key",
    "--apikey=x",
    "--key=sk-abc",
    "--openai-key=sk-1",
    "--openai_api_key=sk",
    "--s3-token=x",
    "--csrf-token=x",
    "--mytoken=x",
    "--token-file=x",
    "--wandb_key=x",
    "HF_TOKEN=hf_abcdefgh",
    "API_KEY=x",
    "AWS_SECRET_ACCESS_KEY=x",
    f"hf_{34 * 'a'}",
    f"ghp_{36 * 'a'}",
    "--url=https://ghp_tok@github.com/x",
    '--config={"password":"x"}',
    "--config=token=x",
    ("--set", "db.password=x"),
    "db.password=x",
    "--header=Authorization: Bearer abc",
    "--dsn=postgresql://u:p@h/db",
    "mysql://root:pa/ss@h",
    "https://x/?api_key=abc",
    "https://b.blob/x?sig=abc&se=1",
    "--passphrase=x",
    "--login-password=x",
    "--Password=x",
    "--dbPassword=x",
    "--apiKey=x",
    "--accessToken=x",
    # Others.
    ("--db-password", "hunter2"),
    ("-H", "X-Api-Key: hunter2"),
    ("--header", "Cookie: session=hunter2"),
    f"--remote=https://oauth2:{HIDDEN}@gitlab.example.org/x.git",
    "redis://:hunter2@cache:6379/0",
    f"github_pat_{22 * 'b'}",
    f"glpat-{20 * 'c'}",
    ACCOUNT,
    f"xoxb-{12 * '1'}-abc",
    JSON_TOKEN,
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=hunter2",
    "--mlflow.tracking.password=hunter2",
    "WANDB_API_KEY=hunter2",
    "--sshKey=hunter2",
    "--jwt=hunter2",
    "--oauth2=hunter2",
    "--hub-token=hunter2",
    ("--credentials", "me.json"),
    '{"auth": {"user": "me", "passwd": "hunter2"}}',
    "env:SMTP_PASS=hunter2",
    "https://host/a?x=1&access_token=hunter2",
    "--azure-storage-key=hunter2",
    "--s3.secretKey=hunter2",
]
HARMLESS = [
    "--tokenizer=bpe",
    "--max-tokens=512",
    ("--max-tokens", "512"),
    ("--pad-token", "pad"),
    "--eos_token=</s>",
    "--num-tokens=3",
    "--token-dropout=0.1",
    "--vocab.unk_token=unk",
    "--author=me",
    "AUTHOR=me",
    "monkey=3",
    "--no-auth",
    "--no-password",
    "--key-dim=64",
    ("--key-dim", "64"),
    "--num-keys=8",
    "--sort-key=name",
    "--key=energy",
    "--label-key=y",
    "--keyboard=us",
    "--forward-pass=2",
    "--num-passes=3",
    "--low-pass=30",
    "--band-pass=1,30",
    "--bypass-warnings=3",
    "--compass-width=3",
    ("-p", "0.5"),
    "--password=$DB_PASSWORD",
    "export HF_TOKEN=$(cat ~/.token)",
    "PWD=/home/me",
    "--use-token=false",
    "--x=https://host:80/a@b",
    "https://host/data.csv?key_dim=3&page=2",
    "ssh://me@host/x",
    "https://git@github.com/x/y",
    "secret",
    "token",
    "--backend=sk-learn",
    "--hf_model=bert-base",
    "tokens_per_second: 5",
    "--secrets=",
    "AuthType=auth/munge",
    "PBS_O_INTERACTIVE_AUTH_METHOD=resvport",
    "the backward pass: 3 ms",
    "turn_pass.py: 12",
]


def words_of(use: str | tuple[str, ...]) -> list[str]:
    return [use] if isinstance(use, str) else list(use)


@pytest.mark.parametrize("use", SECRETS, ids=str)
def test_secrets_in_arguments_are_found_and_their_values_not_named(use: str | tuple[str, ...]) -> None:
    names = list(secrets_in_arguments(["--epochs", "3", *words_of(use)]))
    assert names
    assert "hunter2" not in " ".join(names)


@pytest.mark.parametrize("use", SECRETS, ids=str)
def test_secrets_in_a_line_of_a_text_are_found(use: str | tuple[str, ...]) -> None:
    text = " ".join(words_of(use))
    if text.startswith("-") and not ({"=", " "} & set(text)):
        return  # an option without a value tells nothing
    found = list(secrets_in_text(f"first\nsrun python train.py {text}\nlast"))
    assert found
    assert {secret.line for secret in found} == {2}
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("use", HARMLESS, ids=str)
def test_what_only_sounds_like_a_secret_is_none(use: str | tuple[str, ...]) -> None:
    assert list(secrets_in_arguments(words_of(use))) == []
    assert list(secrets_in_text(" ".join(words_of(use)))) == []


def test_a_secret_in_a_list_of_json_is_found() -> None:
    assert [secret.name for secret in secrets_in_text('{"arguments":["--password","hunter2"]}')] == ["--password"]


def test_variables_of_the_environment_are_told_by_their_names() -> None:
    assert is_secret_name("OMPI_MCA_btl_token") and is_secret_name("NCCL_AUTH")
    assert not is_secret_name("OMPI_MCA_btl") and not is_secret_name("UCX_TLS") and not is_secret_name("KMP_AFFINITY")


@pytest.mark.parametrize("piece", ["a", "a=", "--token ", "://", "https://a:", "?key=", "-", "[", "eyJ", '\\"', "a."])
def test_a_long_line_takes_no_long_time(piece: str) -> None:
    line = piece * (300_000 // len(piece))
    began = time.process_time()
    list(secrets_in_text(line))
    assert time.process_time() - began < 10

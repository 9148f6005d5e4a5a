"""What `pubswap serve` and `pubswap settings server` show of the coordinator's settings."""

import json
import subprocess

from pubswap_server.settings import ServerSettings
from support.forked import pubswap


def called(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with only this environment's settings."""
    return pubswap(*arguments, env={"PATH": "", "COLUMNS": "200", **environment})


def test_every_setting_is_listed_with_what_it_does() -> None:
    """Name, environment name, default and a sentence, as text and as JSON."""
    listed = json.loads(called("settings", "server", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(ServerSettings.model_fields)
    told = called("settings", "server").stdout
    for entry in listed:
        assert entry["description"], f"{entry['name']} has no description"
        assert entry["environment"] == f"PUBSWAP_{entry['name'].upper()}"
        assert f"\n{entry['environment']} (" in f"\n{told}"


def test_what_is_listed_is_what_the_environment_sets() -> None:
    """serve prints the settings in force as an environment file, without secrets, and exits."""
    done = called(
        *("serve", "--print-settings", "--port", "1234"),
        PUBSWAP_PORT="9",
        PUBSWAP_SPARE_BYTES="77",
        PUBSWAP_OPERATOR_TOKEN="the-operator's-own",
        PUBSWAP_DATABASE_URL="postgresql+psycopg://me:the-password@db/pubswap",
        PUBSWAP_NOTIFY_URL="https://hooks.example.org/the-hook",
        PUBSWAP_BLOB_URL="s3://bucket/a:b",
        PUBSWAP_BUCKET_ENDPOINT="https://bucket.example.org:port",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(ServerSettings.model_fields)
    assert {"PUBSWAP_PORT=1234", "PUBSWAP_SPARE_BYTES=77", "# PUBSWAP_TLS_CERT is not set"} <= {
        *lines
    }
    assert "PUBSWAP_BLOB_URL=s3://bucket/a:b" in lines
    assert "PUBSWAP_BUCKET_ENDPOINT=https://bucket.example.org:port" in lines
    assert "the-operator" not in done.stdout
    assert "the-password" not in done.stdout
    assert "the-hook" not in done.stdout


def test_the_help_of_serve_names_the_environment_and_the_list() -> None:
    """Each option has its environment name; `pubswap settings server` lists the other settings."""
    told = called("serve", "--help").stdout
    for name in ("HOST", "PORT", "DATA_DIR", "DATABASE_URL", "BLOB_URL", "LOG_LEVEL", "LOG_FORMAT"):
        assert f"PUBSWAP_{name}]" in told
        assert f"PUBSWAP_{name}".lower()[8:] in ServerSettings.model_fields
    assert "pubswap settings server" in told


def test_a_setting_that_makes_no_sense_is_named() -> None:
    """From the environment or an option alike, in one line without a traceback."""
    for arguments, environment in (
        (("serve",), {"PUBSWAP_SPARE_BYTES": "-1"}),
        (("admin", "verify"), {"PUBSWAP_SPARE_BYTES": "-1"}),
    ):
        done = called(*arguments, **environment)
        assert done.returncode == 1
        assert done.stderr.startswith("error: spare_bytes: Input should be greater")
        assert "Traceback" not in done.stderr


def test_a_bucket_s_endpoint_is_an_address_and_has_a_bucket() -> None:
    """What members will be told is checked before there are any."""
    for endpoint, bucket, said in (
        ("s3.example.org", "s3://bucket", "bucket_endpoint: "),
        ("https://s3.example.org", "", "bucket_endpoint needs a bucket"),
        ("https://s3.example.org", "gs://bucket", "bucket_endpoint needs a bucket"),
    ):
        given = {"PUBSWAP_BUCKET_ENDPOINT": endpoint} | (
            {"PUBSWAP_BLOB_URL": bucket} if bucket else {}
        )
        done = called("serve", **given)
        assert done.returncode == 1
        assert said in done.stderr and "Traceback" not in done.stderr, done.stderr

"""URLs of SQL memories: what a memory is called, and that no error tells a password."""

from __future__ import annotations

import pytest

from audit.errors import MemoryUrlError
from audit.memory import open_memory
from audit.memory.sql.url import parse_postgres

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:%zz{SECRET}@host/db",
        f"postgresql://user:{SECRET} x@host/db",
        f"postgresql://user:{SECRET}@host/db?{SECRET}",
        f"postgresql://user:{SECRET}",
        f"postgresql://user:{SECRET}/db",
        f"postgresql://user:[{SECRET}@host/db",
        f"postgresql://user:a@host:{SECRET}/db",
        f"postgresql://user:a/{SECRET}@host/db",
    ],
)
def test_no_error_repeats_what_may_be_a_password(url: str) -> None:
    """Whatever is wrong with the URL, and wherever libpq says so."""
    with pytest.raises(MemoryUrlError) as caught:
        open_memory(url)
    assert SECRET not in str(caught.value)


def test_another_database_has_another_name() -> None:
    """The spool has a folder for each name, and rows of one memory must not get into another."""
    urls = [
        "postgresql://host/db",
        "postgresql://host/other",
        "postgresql://host/db?schema=other",
        "postgresql://host/db?port=5433",
        "postgresql:///db?host=/one",
        "postgresql:///db?host=/two",
        "postgresql:///?host=/two&dbname=db2",
        "postgresql://host/?service=a",
        "postgresql://one@host",
        "postgresql://two@host",
        "postgresql://[::1]:5432,host:5433/db",
    ]
    assert len({open_memory(url).name for url in urls}) == len(urls)


def test_a_name_tells_no_secret_and_does_not_change_with_the_password() -> None:
    """Nor with how the driver is told to connect."""
    plain = open_memory("postgresql://host/db?host=/one").name
    named = f"postgresql://user:{SECRET}@host/db?host=/one&password={SECRET}&sslmode=require"
    assert open_memory(named).name == plain


@pytest.mark.parametrize("written", ["a+b", "a%2Bb", "a%20b", "a%26b"])
def test_a_parameter_reaches_the_driver_as_it_was_meant(written: str) -> None:
    """libpq decodes %XX and takes a plus for a plus."""
    conninfo = parse_postgres(f"postgresql://h/db?application_name={written}").conninfo
    assert conninfo.partition("=")[2] == written.replace("+", "%2B")


def test_a_database_of_several_hosts_can_be_asked_for_the_one_that_writes() -> None:
    """The memory leaves target_session_attrs to the URL."""
    open_memory("postgresql://one,two/db?target_session_attrs=read-write")


def test_a_file_name_with_a_nul_is_refused() -> None:
    """No file system has one."""
    with pytest.raises(MemoryUrlError):
        open_memory("sqlite:///a%00b")

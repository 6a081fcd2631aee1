"""The library from outside: built against with nothing but its .pc file and header. For plain builds alone: a sanitizer's
library asks more of those who link it."""
import os
import re
import subprocess

import nb
import pytest

PROGRAM = r"""
#include <nibble.h>
#include <stdio.h>
int main(void)
{
    nb_error err = {.status = NB_ERR_MISSING, .offset = -1, .file = "a", .cause = "b", .remedy = "c"};
    char line[64];
    nb_error_format(&err, line, sizeof line);
    printf("%s|%s\n", nb_status_name(NB_OK), line);
    return 0;
}
"""


# The README's, which asks the demo model.
EXAMPLE = re.search(r"^```c\n(.*?)^```", (nb.ROOT / "README.md").read_text(), re.M | re.S)[1]


def build_and_run(tmp, pkg_config_path, static, env=None, program=PROGRAM):
    (tmp / "t.c").write_text(program)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "nibble"] + (["--static"] if static else []), check=True, capture_output=True,
                           text=True, env={**os.environ, "PKG_CONFIG_PATH": str(pkg_config_path)}).stdout.split()
    if static:
        flags = ["-l:libnibble.a" if f == "-lnibble" else f for f in flags]
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-o", tmp / "t", tmp / "t.c", *flags], check=True)
    return subprocess.run([tmp / "t"], check=True, capture_output=True, text=True, cwd=nb.ROOT, env={**os.environ, **(env or {})}).stdout


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_build_folder(static, tmp_path):
    out = build_and_run(tmp_path, nb.BUILD, static, {"LD_LIBRARY_PATH": str(nb.BUILD)})
    assert "|" in out and "a" in out


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_the_example_answers(static, tmp_path):
    assert build_and_run(tmp_path, nb.BUILD, static, {"LD_LIBRARY_PATH": str(nb.BUILD)}, EXAMPLE) == "35"


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_installed(static, tmp_path):
    """Installed under a folder that the build never heard of."""
    prefix = tmp_path / "prefix"
    subprocess.run(["cmake", "--install", nb.BUILD, "--prefix", prefix], check=True, capture_output=True)
    assert subprocess.run([prefix / "bin" / "nibble", "--version"], capture_output=True).returncode == 0
    out = build_and_run(tmp_path, prefix / "lib" / "pkgconfig", static, {"LD_LIBRARY_PATH": str(prefix / "lib")})
    assert "|" in out


def test_only_the_public_api_is_exported():
    symbols = subprocess.run(["nm", "-D", "--defined-only", nb.BUILD / "libnibble.so"], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in symbols.splitlines()]
    header = (nb.ROOT / "include" / "nibble.h").read_text()
    assert names and all(name + "(" in header for name in names if name.startswith("nb_"))

"""Build the native modules: Cython sources in ext/, compiled into the package."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("NGRAMSPEC_DEBUG") == "1"
SOURCES = sorted(Path("ext").rglob("*.pyx"))  # ext/ mirrors the package
# Cython's own code, memoryviews above all, once for all modules: half of what each would compile.
SHARED = "ngramspec._native.core._cython"
HEADERS = sorted(map(str, Path("ext/include").glob("*.h")))
CFLAGS = ["/O2"] if sys.platform == "win32" else ["-O3", "-g0"]
if "-O" in os.environ.get("CFLAGS", ""):
    CFLAGS = []  # they know better
LDFLAGS = []
if sanitizers := os.environ.get("NGRAMSPEC_SANITIZE"):  # as -fsanitize= takes them
    LDFLAGS = [f"-fsanitize={sanitizers}"]
    CFLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", *LDFLAGS]
# AVX2 beside the baseline, chosen at run time (ngs_wide.h); without it what older processors run.
MACROS = [("NGS_BASELINE", "1")] if os.environ.get("NGRAMSPEC_BASELINE") == "1" else []
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    # Nothing has been run without the GIL yet, and it is what guards fields that one thread writes
    # while another reads them, such as those of the engine's slots.
    "freethreading_compatible": False,
    "auto_pickle": False,
    "embedsignature": False,
    "binding": True,
}

FLAGS = {"extra_compile_args": CFLAGS, "extra_link_args": LDFLAGS}
EXTENSIONS = [
    Extension(
        ".".join(source.relative_to("ext").with_suffix("").parts),
        [str(source)],
        include_dirs=["ext/include"],
        depends=HEADERS,
        define_macros=MACROS,
        **FLAGS,
    )
    for source in SOURCES
]
PROCESSES = min(os.cpu_count() or 1, 61)  # more a pool of Windows cannot have

if __name__ == "__main__":  # Cython's processes import this file where they are not forked
    if not {"dist_info", "egg_info", "sdist"} & set(sys.argv):  # which compile nothing
        EXTENSIONS = cythonize(
            [*EXTENSIONS, Extension(SHARED, ["ext/_cython.c"], **FLAGS)],
            include_path=["ext"],
            build_dir="build/cython",
            compiler_directives=DIRECTIVES,
            shared_utility_qualified_name=SHARED,
            nthreads=PROCESSES,
        )
    setup(ext_modules=EXTENSIONS, options={"build_ext": {"parallel": PROCESSES}})

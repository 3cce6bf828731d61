#!/bin/sh
# Build llama.cpp with CUDA for one architecture, as a library for llama-cpp-python to load.
#
#     build_llama_cuda.sh 90 [FOLDER]          # H100, H200; 80 = A100, 89 = L4 and RTX 40, 120 = RTX 50
#     build_llama_cuda.sh cpu [FOLDER]         # the same without CUDA
#     build_llama_cuda.sh pack FILE.tar.xz     # only the sources that a build needs
#
# The library lands in FOLDER/lib (build/llama-cuda/lib) and llama-cpp-python without one in
# FOLDER/python, for a Python that has none; then
#
#     LLAMA_CPP_LIB_PATH=FOLDER/lib python benchmarks/gpu/llama_replay.py
#
# Sources: $LLAMA_SOURCES, an unpacked sdist of llama-cpp-python or what `pack` wrote, for machines
# without a network; else the sdist of the installed version (or $LLAMA_VERSION) from PyPI. The
# version must be that of the Python package: its structures are those of its own llama.cpp.
# Needs cmake, a C++ compiler and, with CUDA, nvcc. $JOBS: compilers at a time (all cores).
#
# PORTABLE=1: for another machine than this one. Its processor needs AVX2 and no more, and the
# libraries are stripped. cuBLAS is looked for where this toolkit is; elsewhere LD_LIBRARY_PATH must
# name its folder.
set -eu

PYTHON=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/../.." && pwd)
what=${1:?"an architecture such as 90, cpu, or pack FILE.tar.xz"}
case $what in
    cpu | pack) ;;
    *[!0-9af]* | [!0-9]*) echo "no architecture: $what (90 is the H100's)" >&2; exit 2 ;;
esac
[ "$what" = pack ] && into=$(mktemp -d) || into=${2:-$here/build/llama-cuda}
mkdir -p "$into"
into=$(cd "$into" && pwd)

sources() {
    # Print the folder that holds llama_cpp/ and vendor/llama.cpp, unpacked if need be.
    given=${LLAMA_SOURCES:-}
    if [ -d "$given" ]; then
        (cd "$given" && pwd)
        return
    fi
    if [ -z "$given" ]; then
        version=${LLAMA_VERSION:-$("$PYTHON" -c 'from importlib.metadata import version
print(version("llama-cpp-python"))')}
        "$PYTHON" -m pip download --quiet --no-deps --no-binary :all: --dest "$into" \
            "llama-cpp-python==$version" >&2
        given=$(ls "$into"/llama_cpp_python-"$version".tar.gz)
    fi
    mkdir -p "$into/sources"
    tar -xf "$given" -C "$into/sources" --strip-components=1
    echo "$into/sources"
}

from=$(sources)
llama=$from/vendor/llama.cpp
[ -f "$llama/CMakeLists.txt" ] || { echo "$from holds no vendor/llama.cpp" >&2; exit 1; }

if [ "$what" = pack ]; then
    # Of ggml only the backends that are built; no docs, models, tools, tests, examples.
    file=${2:?"where the archive goes"}
    (cd "$from" && find llama_cpp -name '*.py' && cd vendor/llama.cpp && find \
        CMakeLists.txt LICENSE AUTHORS cmake include src vendor licenses ggml scripts/*.cmake -type f \
        ! -path 'ggml/src/ggml-*/*' 2>/dev/null | sed 's|^|vendor/llama.cpp/|' &&
        find ggml/src/ggml-cpu ggml/src/ggml-cuda -type f | sed 's|^|vendor/llama.cpp/|') |
        tar -cJf "$file" -C "$from" --transform 's|^|llama/|' -T -
    rm -rf "$into"
    ls -l "$file"
    exit 0
fi

paths='$ORIGIN'  # where the libraries look for one another, and for cuBLAS
if [ "$what" = cpu ]; then
    set -- -DGGML_CUDA=OFF
else
    toolkit=$(nvcc --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
    [ -z "$toolkit" ] || paths="$paths;$toolkit/lib64;$toolkit/lib"
    # Graphs: without them, launching kernels costs more than computing single tokens.
    set -- -DGGML_CUDA=ON -DGGML_CUDA_GRAPHS=ON "-DCMAKE_CUDA_ARCHITECTURES=$what"
fi
if [ "${PORTABLE:-0}" = 1 ]; then
    set -- "$@" -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON \
        -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF -DGGML_AMX_INT8=OFF
else
    set -- "$@" -DGGML_NATIVE=ON
fi
cmake -S "$llama" -B "$into/cmake" "$@" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=$paths"
cmake --build "$into/cmake" --config Release --target llama -j "${JOBS:-$(nproc)}"

rm -rf "$into/lib" "$into/python"
mkdir -p "$into/lib" "$into/python"
cp -a "$into"/cmake/bin/*.so* "$into/lib/"
[ "${PORTABLE:-0}" != 1 ] || find "$into/lib" -type f -exec strip --strip-unneeded {} +
(cd "$from" && find llama_cpp -name '*.py' | tar -cf - -T -) | tar -xf - -C "$into/python"
ls -l "$into/lib"
echo "LLAMA_CPP_LIB_PATH=$into/lib"

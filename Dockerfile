# The server in a container; docs/start/install.md says how to run it.
#   docker build -t ngramspec .
#   docker build -t ngramspec:cuda --build-arg DEVICE=cuda .
ARG DEVICE=cpu
ARG CUDA=12.9.1

# GGML_NATIVE=OFF: not for the processor of the machine that builds, but for any with AVX2.
FROM debian:trixie-slim AS build-cpu
ENV CMAKE_ARGS="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"

# The driver's library comes with the machine that runs it.
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build-cuda
ENV CMAKE_ARGS="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DGGML_CUDA=on -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"

# hadolint ignore=DL3006
FROM build-${DEVICE} AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/ngramspec
ENV PATH=/opt/ngramspec/bin:$PATH PIP_NO_CACHE_DIR=1
# By itself, so that a change of ours does not compile it again.
# hadolint ignore=DL3013
RUN pip install "llama-cpp-python>=0.3.36"
COPY . /src
RUN pip install "/src[server]"

FROM debian:trixie-slim AS run-cpu
FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04 AS run-cuda

# hadolint ignore=DL3006
FROM run-${DEVICE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 ngramspec
COPY --from=build /opt/ngramspec /opt/ngramspec
ENV PATH=/opt/ngramspec/bin:$PATH
USER 10001
WORKDIR /home/ngramspec
EXPOSE 8080
# For another port or prefix, set it with -e. The start period is for loading the model and ends with it.
ENV NGRAMSPEC_HEALTH_URL=http://127.0.0.1:8080/health
HEALTHCHECK --start-period=900s --timeout=10s \
    CMD ["python3", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['NGRAMSPEC_HEALTH_URL'], timeout=5)"]
ENTRYPOINT ["ngramspec", "serve", "--host", "0.0.0.0"]

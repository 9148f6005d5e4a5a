# The coordinator: no torch. Build from the project's root.
# PYTHON_IMAGE may be any image with python3 >= 3.11 and its venv module.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY protocol /src/protocol
COPY server /src/server
COPY client /src/client
COPY simulation /src/simulation
RUN python3 -m venv /opt/pubswap \
    && /opt/pubswap/bin/pip install --no-cache-dir -c /src/constraints.txt '/src[server,tasks]' \
    && /opt/pubswap/bin/pip install --no-cache-dir -c /src/constraints.txt --no-deps reasoning-gym

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --create-home pubswap && install -d -m 700 -o pubswap /data
COPY --from=build /opt/pubswap /opt/pubswap
ENV PATH=/opt/pubswap/bin:$PATH PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=1 \
    PUBSWAP_HOST=0.0.0.0 PUBSWAP_PORT=8470 PUBSWAP_DATA_DIR=/data
USER pubswap
VOLUME /data
EXPOSE 8470
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=12 CMD ["python3", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8470/readyz', timeout=2)"]
CMD ["pubswap", "serve"]

# The client daemon and the evaluator: torch, transformers, peft. Build from the project's root.
# PYTHON_IMAGE may be any image with python3 >= 3.11 and its venv module.
#
# For GPUs with vLLM, which chooses most versions itself. Kernels are compiled where they run, which
# needs the compiler of the image without `slim`:
#
#   docker build -f deploy/client.Dockerfile -t pubswap-client-vllm \
#       --build-arg PYTHON_IMAGE=python:3.11-bookworm --build-arg EXTRAS=client,vllm \
#       --build-arg PINNED='^(torch|math-verify|latex2sympy2_extended|sympy|reasoning_gym)==' .
#   docker run --gpus all --shm-size 8g -v pubswap-state:/state pubswap-client-vllm
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS=client
# The constraints to apply: all, or those that match this pattern.
ARG PINNED=.
COPY constraints.txt /src/all.txt
# torch first and alone, because its layer is the largest and changes least.
RUN grep -E "$PINNED" /src/all.txt > /src/constraints.txt && python3 -m venv /opt/pubswap \
    && /opt/pubswap/bin/pip install --no-cache-dir \
       -c /src/constraints.txt "$(grep '^torch==' /src/constraints.txt)"
COPY pyproject.toml README.md LICENSE /src/
COPY protocol /src/protocol
COPY server /src/server
COPY client /src/client
COPY simulation /src/simulation
COPY deploy/recipes /src/deploy/recipes
RUN /opt/pubswap/bin/pip install --no-cache-dir -c /src/constraints.txt "/src[$EXTRAS]" \
    && case ",$EXTRAS," in *,tasks,*) /opt/pubswap/bin/pip install --no-cache-dir \
       -c /src/constraints.txt --no-deps reasoning-gym;; esac \
    && ln -s "$(/opt/pubswap/bin/python -c \
       'import importlib.util as u; print(u.find_spec("pubswap_client").submodule_search_locations[0])')/demo/model" \
       /opt/pubswap/demo-model

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --create-home pubswap && install -d -o pubswap /state /demo/data \
       /demo/members/client-1 /demo/members/client-2 /demo/members/client-3 /demo/members/client-4 \
       /demo/members/evaluator && chown pubswap /demo /demo/members
COPY --from=build /opt/pubswap /opt/pubswap
ENV PATH=/opt/pubswap/bin:$PATH PYTHONUNBUFFERED=1 PUBSWAP_CLIENT_STATE=/state
USER pubswap
VOLUME /state
CMD ["pubswap", "client", "start"]

# protonorm and what it needs, without developer tools, on CPUs:
#   docker build -t protonorm --build-arg VERSION=0.2.0 .
#   docker run --rm -v "$PWD/runs:/home/protonorm/runs" protonorm run dataset=spiral rounds=10
# The mounted folder must be writable for the user 1000.
FROM python:3.11-slim AS build
# .git stays outside (.dockerignore), so the version is told; without it that of pyproject.toml's fallback is taken.
ARG VERSION=0.1.dev0
# The address of an index with builds of torch for CPUs may be given: they are much smaller than those with CUDA.
ARG PIP_EXTRA_INDEX_URL
# [deploy] or [ray,timm], say: what else is to be installed.
ARG EXTRAS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/protonorm
ENV PATH=/opt/protonorm/bin:$PATH
WORKDIR /source
COPY constraints.txt ./
RUN pip install -c constraints.txt torch torchvision
COPY . .
RUN SETUPTOOLS_SCM_PRETEND_VERSION="${VERSION}" pip install -c constraints.txt ".${EXTRAS}"

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 protonorm
COPY --from=build /opt/protonorm /opt/protonorm
ENV PATH=/opt/protonorm/bin:$PATH PROTONORM_RUNS=/home/protonorm/runs PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/protonorm
RUN mkdir runs && protonorm --version
ENTRYPOINT ["protonorm"]
CMD ["--help"]

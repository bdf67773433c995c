# docker build --target cpu --build-arg TORCH_INDEX=... -t insclr .     (the default)
# docker build --target cuda -t insclr:cuda . ; docker run --gpus all insclr:cuda ...
# Not yet built by anyone: where this was written there was no Docker to build it with.
FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Nothing runs as root. The cache holds graphs prepared for the engines, and thumbnails of Milvus stores.
RUN useradd --create-home --uid 1000 insclr && install --directory --owner insclr /home/insclr/.cache
WORKDIR /app
COPY constraints.txt ./

FROM base AS cuda
# torch of the default index for Linux brings CUDA's libraries along: the host needs NVIDIA's driver and container toolkit.
RUN pip install -c constraints.txt torch torchvision
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip install -c constraints.txt '.[train,milvus,raw,video]'
USER insclr
VOLUME ["/home/insclr/.cache"]
EXPOSE 8000
ENTRYPOINT ["insclr"]
CMD ["--help"]

FROM base AS cpu
# PyTorch's index of CPU builds (pytorch.org, Get Started, Linux, Pip, CPU). Left out, CUDA's gigabytes come along.
ARG TORCH_INDEX=""
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip install -c constraints.txt '.[train,milvus,openvino,raw,video]'
USER insclr
VOLUME ["/home/insclr/.cache"]
EXPOSE 8000
ENTRYPOINT ["insclr"]
CMD ["--help"]

#!/bin/bash -eu
# What ClusterFuzzLite calls; the project's own script does the work, here and at a desk.
exec "$SRC/attnfuzz/ci/oss-fuzz/build.sh"

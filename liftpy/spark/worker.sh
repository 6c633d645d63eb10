#!/bin/sh
# The interpreter of Spark's Python workers on this machine. Spark puts zips of its own Python code in front of their PYTHONPATH, which
# hold no bytecode: each worker would compile them anew, for 0.6 s. The package that is installed holds the same code, compiled.
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
    case $place in
        */pyspark/python/lib/pyspark.zip | */pyspark/python/lib/py4j-*.zip) ;;
        *) kept=${kept:+$kept:}$place ;;
    esac
done
PYTHONPATH=$kept exec "$PYSPARK_DRIVER_PYTHON" "$@"

#!/bin/sh
# shard.sh NAME INDEX COUNT PROGRAM: one of COUNT parts of a GoogleTest program; its results go to NAME.xml.
[ -z "$GTEST_OUTPUT" ] || export GTEST_OUTPUT="$GTEST_OUTPUT$1.xml"
export GTEST_SHARD_INDEX="$2" GTEST_TOTAL_SHARDS="$3"
exec "$4"

#!/bin/sh
# A worker in shell: writes the SHA-256 of each MiB of a file beside it, and resumes where an earlier attempt was cut off.
#
#   leasebeat send default '"/data/film.mov"'
#   leasebeat work default --raw -- examples/work.sh
#
# The body, a string, is on standard input. Each line printed is a beat; the last one that is no report is the result.
set -eu

file=$(cat)
sums=$file.sha256
mib=1048576
chunks=$((($(wc -c <"$file") + mib - 1) / mib))
chunk=${LEASEBEAT_PROGRESS:-0}

touch "$sums"
head -n "$chunk" "$sums" >"$sums.kept" # an attempt that was killed may have written more than it told of
mv "$sums.kept" "$sums"

while [ "$chunk" -lt "$chunks" ]; do
    dd if="$file" bs=$mib skip="$chunk" count=1 2>/dev/null | sha256sum | cut -d ' ' -f 1 >>"$sums"
    chunk=$((chunk + 1))
    echo "{\"progress\": $chunk}"
done
echo "{\"chunks\": $chunks}"

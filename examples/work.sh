#!/bin/sh
# A worker in shell: writes the SHA-256 of each MiB of a file beside it, and resumes where an earlier attempt was cut off.
#
#   leasebeat send default '"/data/film.mov"'
#   leasebeat work default --raw -- examples/work.sh
#
# The body, a string, is on standard input. Each line printed is a beat; the last one that is no report is the result.
#
# Who has lost its lease may go on for a moment beside the next. So each writes a file of its own, named by the lease's generation, and the
# result, of which the service takes one, says which file counts.
set -eu

file=$(cat)
sums=$file.sha256.$LEASEBEAT_GENERATION
mib=1048576
chunks=$((($(wc -c <"$file") + mib - 1) / mib))
chunk=${LEASEBEAT_PROGRESS:-0}

if [ "$chunk" -gt 0 ]; then
    head -n "$chunk" "$file.sha256.$LEASEBEAT_DETAIL" >"$sums" # what the attempt told of, which may have written more
else
    : >"$sums"
fi
while [ "$chunk" -lt "$chunks" ]; do
    dd if="$file" bs=$mib skip="$chunk" count=1 2>/dev/null | sha256sum | cut -d ' ' -f 1 >>"$sums"
    chunk=$((chunk + 1))
    echo "{\"progress\": $chunk, \"detail\": $LEASEBEAT_GENERATION}"
done
echo "{\"chunks\": $chunk, \"generation\": $LEASEBEAT_GENERATION}"

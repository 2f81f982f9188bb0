# For examples of the documents that read from a bucket: `. "$REPOSITORY/tools/bucket.sh" BUCKET PATTERN` starts an S3
# server of this machine with a bucket of tar shards, each of two pictures with their classes. bash expands the pattern.
# `stocached` then takes this server for storage.example:9000, and for Amazon's.
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=example AWS_SECRET_ACCESS_KEY=only-for-a-test AWS_REGION=eu-1
mkdir -p "buckets/$1/train"
for k in 0 1; do
    mkdir -p "pictures/class-$k"
    cp "$REPOSITORY/source/decode/testdata/500x375.jpg" "pictures/class-$k/$k.jpg"
    cp "pictures/class-$k/$k.jpg" $k.jpg
    printf $k > $k.cls
done
cp -r pictures/* "buckets/$1/train"
tar -cf shard.tar 0.jpg 0.cls 1.jpg 1.cls
eval "for shard in $2; do cp shard.tar \"buckets/$1/\$shard\"; done"
"$REPOSITORY/.tools/versitygw" --port "127.0.0.1:$port" --region eu-1 --access "$AWS_ACCESS_KEY_ID" --secret "$AWS_SECRET_ACCESS_KEY" \
    --health /health --quiet posix buckets > storage.txt 2>&1 &
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
until curl --silent --output /dev/null "$AWS_ENDPOINT_URL/health"; do kill -0 $! && sleep 0.1; done
stocached() { command stocached "${@//https:\/\/storage.example:9000/$AWS_ENDPOINT_URL}"; }

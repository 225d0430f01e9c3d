#!/bin/bash
# Writes what each of three machines or more needs, for a Redis and a Sentinel on each:
#   deploy/sentinel/prepare.sh secrets redis-1 redis-2 redis-3
# FOLDER/HOST becomes /etc/redis of that host. The first one begins as the master. It needs openssl, and mqtune.
set -euo pipefail

if [[ $# -lt 4 ]]; then
  echo "usage: $0 FOLDER HOST HOST HOST…   (a majority of the Sentinels must survive, so there are three or more)" >&2
  exit 2
fi
here=$(dirname "$0")
folder=$1
shift
umask 077
"$here/../certificates.sh" "$folder" "$@"
"$here/../accounts.sh" "$folder"
grep -q '^REDIS_SENTINELS_PASSWORD=' "$folder/passwords.env" \
  || echo "REDIS_SENTINELS_PASSWORD=$(openssl rand -hex 24)" >> "$folder/passwords.env"

# Put passwords and names in.
filled() {
  local script="s/@HOST@/$1/;s/@MASTER@/$2/" name value
  while IFS='=' read -r name value; do script+=";s/@$name@/$value/"; done < "$folder/passwords.env"
  sed "$script" "$here/$3"
}
master=$1
for host in "$@"; do
  mkdir -p "$folder/$host"
  cp "$folder/ca.crt" "$folder/users.acl" "$folder/$host/"
  cp "$folder/$host.crt" "$folder/$host/server.crt"
  cp "$folder/$host.key" "$folder/$host/server.key"
  filled "$host" "$master" redis.conf > "$folder/$host/redis.conf"
  [[ $host == "$master" ]] || echo "replicaof $master 6379" >> "$folder/$host/redis.conf"
  filled "$host" "$master" sentinel.conf > "$folder/$host/sentinel.conf"
done
hosts=$*
echo "$folder/HOST is for /etc/redis of each host; the passwords are in $folder/passwords.env. The broker, for a worker:"
echo "rediss+sentinel://mqtune-worker:REDIS_WORKER_PASSWORD@${hosts// /,}/tuning/0?sentinel_password=REDIS_SENTINELS_PASSWORD&ssl_ca_certs=/etc/mqtune/ca.crt"

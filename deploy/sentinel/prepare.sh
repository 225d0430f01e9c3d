#!/bin/bash
# Writes what each of three machines or more needs, for a Redis and a Sentinel on each:
#   deploy/sentinel/prepare.sh secrets redis-1 redis-2 redis-3 [-- TEAM…]
# FOLDER/HOST becomes /etc/redis of that host. The first one begins as the master. Each TEAM gets an account (see accounts.sh), and the
# teams that FOLDER has stay. It needs openssl, and mqtune.
set -euo pipefail

here=$(dirname "$0")
folder=${1:-} hosts=()
shift || true
while [[ $# -gt 0 && $1 != -- ]]; do
  hosts+=("$1")
  shift
done
if [[ ${#hosts[@]} -lt 3 ]]; then
  echo "usage: $0 FOLDER HOST HOST HOST… [-- TEAM…]   (a majority of the Sentinels must survive, so there are three or more)" >&2
  exit 2
fi
# What is left are the teams, behind two dashes.
shift || true
umask 077
"$here/../certificates.sh" "$folder" "${hosts[@]}"
"$here/../accounts.sh" "$folder" "$@"
grep -q '^REDIS_SENTINELS_PASSWORD=' "$folder/passwords.env" \
  || echo "REDIS_SENTINELS_PASSWORD=$(openssl rand -hex 24)" >> "$folder/passwords.env"

# Put passwords and names in.
filled() {
  local script="s/@HOST@/$1/;s/@MASTER@/$2/" name value
  while IFS='=' read -r name value; do script+=";s/@$name@/$value/"; done < "$folder/passwords.env"
  sed "$script" "$here/$3"
}
master=${hosts[0]}
for host in "${hosts[@]}"; do
  mkdir -p "$folder/$host"
  cp "$folder/ca.crt" "$folder/users.acl" "$folder/$host/"
  cp "$folder/$host.crt" "$folder/$host/server.crt"
  cp "$folder/$host.key" "$folder/$host/server.key"
  filled "$host" "$master" redis.conf > "$folder/$host/redis.conf"
  [[ $host == "$master" ]] || echo "replicaof $master 6379" >> "$folder/$host/redis.conf"
  filled "$host" "$master" sentinel.conf > "$folder/$host/sentinel.conf"
done
echo "$folder/HOST is for /etc/redis of each host; the passwords are in $folder/passwords.env. The broker, for a worker:"
echo "rediss+sentinel://mqtune-worker:REDIS_WORKER_PASSWORD@$(IFS=,; echo "${hosts[*]}")/tuning/0?sentinel_password=REDIS_SENTINELS_PASSWORD&ssl_ca_certs=/etc/mqtune/ca.crt"

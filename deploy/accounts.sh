#!/bin/bash
# Writes the accounts of a Redis, one for each role:  deploy/accounts.sh secrets [TEAM…]
# FOLDER/passwords.env gets a password for each, unless it is there already; FOLDER/users.acl is what Redis reads (aclfile), with hashes
# alone. After an upgrade of mqtune run it again: passwords stay. A TEAM gets a driver's account for experiments named TEAM-*.
set -euo pipefail

if [[ $# -lt 1 ]]; then
  echo "usage: $0 FOLDER [TEAM…]" >&2
  exit 2
fi
folder=$1
shift
umask 077
mkdir -p "$folder"
passwords=$folder/passwords.env
touch "$passwords"

# The account's password, which is drawn the first time: letters and digits, as it becomes part of a URL.
password() {
  local name=REDIS_$1_PASSWORD
  grep -q "^$name=" "$passwords" || echo "$name=$(openssl rand -hex 24)" >> "$passwords"
  sed -n "s/^$name=//p" "$passwords"
}
hash() { printf %s "$1" | sha256sum | cut -d ' ' -f 1; }
# An account of mqtune's, by name of its password.
account() {
  local name=$1
  shift
  MQTUNE_ACL_PASSWORD=$(password "$name") mqtune acl --aclfile "$@"
}

{
  # It may do everything: nobody logs in as this one.
  echo "user default off"
  # Health checks ask whether the server is up, and may do nothing else.
  echo "user health on nopass resetkeys resetchannels -@all +ping"
  account DRIVER driver
  account WORKER worker
  account OPERATOR operator
  account MONITOR monitor
  account FLOWER monitor --remote-control --user mqtune-flower
  for team in "$@"; do
    name=${team^^}
    account "${name//[^A-Z0-9]/_}" driver --user "$team-driver" --experiments "$team-*"
  done
  # KEDA runs a script that asks for the length of a queue, or of the list of what runs.
  echo "user keda on #$(hash "$(password KEDA)") resetchannels -@all +hello +ping +client|setname (+eval +type +llen +zcard resetkeys ~mqtune-* ~mqtune:quota:*)"
  # Replicas log in to their master, Sentinels to both.
  echo "user replica on #$(hash "$(password REPLICA)") resetkeys resetchannels -@all +psync +replconf +ping"
  echo "user sentinel on #$(hash "$(password SENTINEL)") resetkeys allchannels -@all +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill"
} > "$folder/users.acl.new"
mv "$folder/users.acl.new" "$folder/users.acl"

#!/bin/bash
# Writes the accounts of a Redis:  deploy/accounts.sh secrets [TEAM…] [--drop NAME]…
# There is one for each role, `admin`, which no program uses, and for each TEAM a driver's for experiments named TEAM-*.
# FOLDER/passwords.env gets a password for each, unless it is there already; FOLDER/users.acl is what Redis reads (aclfile), with hashes
# alone. After an upgrade of mqtune run it again: passwords, teams, and accounts that you have added to users.acl stay.
# --drop removes a team, or an account of that name.
set -euo pipefail

folder= teams=() dropped=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --drop) dropped+=("${2:?--drop NAME}"); shift ;;
    -*) folder=; break ;;
    *) if [[ -z $folder ]]; then folder=$1; else teams+=("$1"); fi ;;
  esac
  shift
done
if [[ -z $folder ]]; then
  echo "usage: $0 FOLDER [TEAM…] [--drop NAME]…" >&2
  exit 2
fi
umask 077
mkdir -p "$folder"
passwords=$folder/passwords.env accounts=$folder/users.acl
touch "$passwords" "$accounts"

is_dropped() { [[ " ${dropped[*]} " == *" $1 "* ]]; }
has_password() { grep -q "^REDIS_$1_PASSWORD=" "$passwords"; }
# A team's name as that of its password.
variable() {
  local name=${1^^}
  echo "${name//[^A-Z0-9]/_}"
}
# Teams that there are stay.
while read -r team; do
  if has_password "$(variable "$team")" && [[ $team != mqtune && " ${teams[*]} " != *" $team "* ]]; then
    teams+=("$team")
  fi
done < <(sed -n 's/^user \([^ ]*\)-driver on .*/\1/p' "$accounts")

# The account's password, which is drawn the first time: letters and digits, as it becomes part of a URL.
password() {
  local name=REDIS_$1_PASSWORD
  has_password "$1" || echo "$name=$(openssl rand -hex 24)" >> "$passwords"
  sed -n "s/^$name=//p" "$passwords"
}
hash() { printf %s "$1" | sha256sum | cut -d ' ' -f 1; }
# An account of mqtune's, by name of its password.
account() {
  local name=$1
  shift
  MQTUNE_ACL_PASSWORD=$(password "$name") mqtune fleet acl --aclfile "$@"
}

{
  # It may do everything: nobody logs in as this one.
  echo "user default off"
  # For people who operate Redis; no program has its password. One that you have made stays.
  if has_password ADMIN || ! grep -q '^user admin ' "$accounts"; then
    echo "user admin on #$(hash "$(password ADMIN)") ~* &* +@all"
  fi
  # Health checks ask whether the server is up, and may do nothing else.
  echo "user health on nopass resetkeys resetchannels -@all +ping"
  account DRIVER driver
  account WORKER worker
  account OPERATOR operator
  account MONITOR monitor
  account FLOWER monitor --remote-control --user mqtune-flower
  for team in "${teams[@]}"; do
    is_dropped "$team" && continue
    case $(variable "$team") in
      ADMIN | DRIVER | WORKER | OPERATOR | MONITOR | FLOWER | KEDA | REPLICA | SENTINEL | SENTINELS)
        echo "$0: the team $team would share a password with an account of that name; call it otherwise" >&2
        exit 2
        ;;
    esac
    account "$(variable "$team")" driver --user "$team-driver" --experiments "$team-*"
  done
  # KEDA runs a script that asks for the length of a queue, or of the list of what runs.
  echo "user keda on #$(hash "$(password KEDA)") resetchannels -@all +hello +ping +client|setname (+eval +type +llen +zcard resetkeys ~mqtune-* ~mqtune:quota:*)"
  # Replicas log in to their master, Sentinels to both.
  echo "user replica on #$(hash "$(password REPLICA)") resetkeys resetchannels -@all +psync +replconf +ping"
  echo "user sentinel on #$(hash "$(password SENTINEL)") resetkeys allchannels -@all +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill"
} > "$accounts.new"
# What somebody else has added.
while read -r word user rest; do
  if [[ $word != user ]] || grep -q "^user $user " "$accounts.new"; then
    continue
  elif is_dropped "$user" || is_dropped "${user%-driver}"; then
    echo "$user is dropped" >&2
  else
    echo "$word $user $rest" >> "$accounts.new"
    echo "$user stays as it is; --drop $user removes it" >&2
  fi
done < "$accounts"
mv "$accounts.new" "$accounts"

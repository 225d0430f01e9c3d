#!/bin/bash
# Makes an authority, and a certificate for each server:  deploy/certificates.sh secrets redis-1 redis-2 redis-3
# Each server is HOST, or HOST,OTHER-NAME,… if clients know it by several names. FOLDER gets HOST.crt and HOST.key, which only that server
# needs; ca.crt, which each client needs; and ca.key, which signs others later and belongs where nobody else can read it.
set -euo pipefail

if [[ $# -lt 2 ]]; then
  echo "usage: $0 FOLDER HOST[,OTHER-NAME…]…" >&2
  exit 2
fi
folder=$1
shift
# Ten years for the authority. Two for a server: run this again, and restart it, before they are over.
AUTHORITY_DAYS=3650
SERVER_DAYS=730

umask 077
mkdir -p "$folder"
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
if [[ ! -f $folder/ca.key ]]; then
  key "$folder/ca.key"
  openssl req -x509 -new -key "$folder/ca.key" -subj "/CN=mqtune authority" -days "$AUTHORITY_DAYS" -out "$folder/ca.crt" \
    -addext "keyUsage=critical,keyCertSign,cRLSign"
  chmod 644 "$folder/ca.crt"
fi
for host in "$@"; do
  first=${host%%,*}
  [[ -f $folder/$first.key ]] || key "$folder/$first.key"
  # localhost is for redis-cli on the server itself, and for kubectl port-forward.
  {
    echo "subjectAltName=DNS:${host//,/,DNS:},DNS:localhost,IP:127.0.0.1"
    echo "extendedKeyUsage=serverAuth,clientAuth"
    echo "authorityKeyIdentifier=keyid"
  } > "$folder/$first.ext"
  openssl req -new -key "$folder/$first.key" -subj "/CN=$first" \
    | openssl x509 -req -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
      -days "$SERVER_DAYS" -extfile "$folder/$first.ext" -out "$folder/$first.crt" 2> /dev/null
  rm "$folder/$first.ext"
done

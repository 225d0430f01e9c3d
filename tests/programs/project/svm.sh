#!/bin/sh
# A program with short flags, as svm-train has them: ./svm.sh -c 1 -g 0.5 -q data/points.csv
while getopts c:g:q flag; do
  case $flag in
    c) cost=$OPTARG ;;
    g) gamma=$OPTARG ;;
    q) quiet=yes ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
rows=$(wc -l < "$1") || exit 1
test -n "$quiet" || echo "optimization finished, #iter = 100"
sleep 0.4
awk -v cost="$cost" -v gamma="$gamma" -v rows="$rows" \
  'BEGIN { printf "Cross Validation Accuracy = %.4f%%\n", 100 - rows * (cost - 2)^2 - (gamma + 1)^2 }'

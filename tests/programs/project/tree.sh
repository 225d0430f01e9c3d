#!/bin/sh
# A program of another language that prints a table for people: ./tree.sh --cp=0.1 --depth=3
for argument in "$@"; do
  case $argument in
    --cp=*) cp=${argument#--cp=} ;;
    --depth=*) depth=${argument#--depth=} ;;
    *) echo "unused argument ($argument)" >&2; exit 2 ;;
  esac
done
sleep 0.4
awk -v cp="$cp" -v depth="$depth" 'BEGIN {
  print "Loading required package: tree"
  for (fold = 1; fold <= 3; fold++) printf "[%d] fold %d  error %.4f\n", fold, fold, cp + fold / depth
  printf "cross-validated error: %.6f (%d folds)\n", cp + 2 / depth, 3
}'
